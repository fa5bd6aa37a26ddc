from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import messages
from headrace.cli.messages import Form, InputInvalid, Message, Parser, format_record, parse_header
from headrace.errors import HeadraceError


def read(data: bytes, form: Form = Form.TEXT, key_separator: str | None = None) -> list[Message]:
    parser = Parser(form, key_separator)
    return [*parser.feed(data), *parser.end()]


def test_a_line_is_a_message():
    assert [m.value for m in read(b"one\ntwo\r\n\nlast")] == [b"one", b"two", b"", b"last"]


@given(st.binary(max_size=60), st.lists(st.integers(0, 60)), st.sampled_from([Form.TEXT, Form.RAW]))
def test_the_pieces_of_a_stream_do_not_matter(data, cuts, form):
    parser = Parser(form, None)
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert [m for piece in pieces for m in parser.feed(piece)] + list(parser.end()) == read(data, form)


def test_keys_in_front_of_a_separator():
    assert read(b"a:b:c\n", key_separator=":") == [Message(b"a", b"b:c", [])]
    assert read(b"a\tb\n", key_separator="\\t") == [Message(b"a", b"b", [])]
    with pytest.raises(HeadraceError, match="line 2 has no key"):
        read(b"a:b\nc\n", key_separator=":")


def test_raw_is_one_message():
    assert read(b"one\ntwo\n", Form.RAW) == [Message(None, b"one\ntwo\n", [])]


@pytest.mark.parametrize(("form", "what"), [(Form.TEXT, "line 2"), (Form.JSON, "line 2"), (Form.RAW, "the message")])
def test_a_line_that_never_ends_is_given_up(monkeypatch, form, what):
    monkeypatch.setattr(messages, "INPUT_MAX_BYTES", 100)
    parser = Parser(form, None)
    assert len(list(parser.feed(b'{"value": 1}\n'))) == (form is not Form.RAW)
    for _ in range(8):
        assert list(parser.feed(b"x" * 10)) == []
    with pytest.raises(InputInvalid, match=f"{what} is longer than 100 bytes"):
        list(parser.feed(b"x" * 30))


def test_json_values_may_be_structures():
    assert read(b'{"value": {"a": 1}}\n\n', Form.JSON) == [Message(None, b'{"a": 1}', [])]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"value_base64": "!"}',
        b'{"value": "\\ud800"}',
        # A slip that would have sent null, which deletes a key.
        b'{"key": "k", "vlaue": "x"}',
        b'{"value": "", "timestamp": "x"}',
        b'{"value": "", "timestamp": 9223372036854775808}',
        b'{"value": "", "timestamp": -2}',
        b'{"value": "", "headers": [{}]}',
        b'{"value": "", "headers": {"name": "x"}}',
        b'{"value": "", "headers": [{"name": 3}]}',
        b'{"value": "", "headers": [{"name": "\\ud800"}]}',
    ],
)
def test_what_is_no_json_message_is_named_by_its_line(line):
    with pytest.raises(HeadraceError, match="line 1 is not a JSON object"):
        read(line, Form.JSON)


def test_a_separator_must_be_something():
    with pytest.raises(HeadraceError, match="--key-separator must not be empty"):
        Parser(Form.TEXT, "")


def test_text_and_raw_print_values():
    record = (7, 1_700_000_000_000, b"k", b"v", [])
    assert format_record(Form.TEXT, None, "t", 0, record) == b"v\n"
    assert format_record(Form.TEXT, "=", "t", 0, record) == b"k=v\n"
    assert format_record(Form.RAW, None, "t", 0, record) == b"v"
    assert json.loads(format_record(Form.JSON, None, "t", 3, record)) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "time": "2023-11-14T22:13:20.000+00:00",
        "key": "k",
        "value": "v",
    }


maybe_bytes = st.none() | st.binary(max_size=20)


@given(
    st.integers(0, 1 << 62), maybe_bytes, maybe_bytes, st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3)
)
def test_json_keeps_everything(timestamp, key, value, headers):
    line = format_record(Form.JSON, None, "t", 0, (1, timestamp, key, value, headers))
    assert line.count(b"\n") == 1
    assert read(line, Form.JSON) == [Message(key, value, headers, timestamp)]


def test_headers():
    assert parse_header("a=b=c") == ("a", b"b=c")
    for wrong in ("a", "=b"):
        with pytest.raises(HeadraceError, match="must be NAME=VALUE"):
            parse_header(wrong)
