"""Messages of RocketMQ as records, and records of any door as messages of RocketMQ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.doors.rocketmq.formats import given_properties

from headrace.doors.rocketmq.messages import PROPERTIES_BYTES_MAX, Host, encode, read_properties
from headrace.doors.rocketmq.records import headers_of, key_of, message_of, properties_of, tag_of

HERE = Host.of("127.0.0.1", 10911)
THERE = Host.of("2001:db8::1", 7)

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02"), min_size=1, max_size=12)


@given(
    st.dictionaries(texts.filter(lambda name: not name.startswith("rocketmq-")), texts, max_size=4),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 30),
    st.integers(0, 20),
)
def test_a_message_comes_back(properties: dict[str, str], born_ms: int, flag: int, times: int) -> None:
    headers = headers_of(properties, born_ms=born_ms, born_host=THERE, flag=flag, sys_flag=2, reconsume_times=times)
    message = message_of((5, 99, None, b"body", headers), "orders", 3, 77, HERE)
    assert given_properties(message) == properties
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 3, 5)
    assert (message.physical_offset, message.body, message.store_ms) == (77, b"body", 99)
    assert (message.born_ms, message.born_host, message.store_host) == (born_ms, THERE, HERE)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (flag, 2, times)


def test_the_sharding_key_is_the_key() -> None:
    assert key_of({"__SHARDINGKEY": "ü", "KEYS": "k"}) == "ü".encode()
    assert key_of({"KEYS": "k"}) is None


def test_a_record_of_another_door_is_a_message() -> None:
    message = message_of((5, 99, b"key", None, [("trace", b"abc"), ("TAGS", b"red")]), "orders", 0, 1, HERE)
    assert (message.body, message.born_ms, message.born_host) == (b"", 99, HERE)
    assert given_properties(message) == {"trace": "abc", "TAGS": "red"}


def test_headers_that_no_property_can_be() -> None:
    headers = [
        ("bin", b"\xff\0"),
        ("mark", b"a\x01b"),
        ("again", b"1"),
        ("again", b"2"),
        ("none", None),
        ("a\x02b", b"x"),
    ]
    assert properties_of(headers) == {"bin-bin": "/wA=", "mark-bin": "YQFi", "again": "2", "none": ""}


def test_own_headers_that_another_door_wrote_as_it_likes() -> None:
    odd = [("rocketmq-flag", b"nonsense"), ("rocketmq-born-time", b"9" * 30), ("rocketmq-born-host", b"\xff:x")]
    odd += [("rocketmq-reconsume-times", b"99999999999"), ("rocketmq-sys-flag", None)]
    message = message_of((5, 99, None, b"", odd), "orders", 0, 1, HERE)
    assert (message.flag, message.born_ms, message.born_host, message.reconsume_times) == (0, 99, HERE, 0)
    assert given_properties(message) == {}
    encode(message)


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_properties_that_are_too_many_are_left_out(first: int, second: int) -> None:
    headers = [("a", "ü".encode() * first), ("b", b"x" * second)]
    message = message_of((5, 99, None, b"", headers), "orders", 0, 1, HERE)
    assert len(message.properties.encode()) <= PROPERTIES_BYTES_MAX
    encode(message)
    found = read_properties(message.properties)
    assert ("a" in found) == (2 * first + 3 <= PROPERTIES_BYTES_MAX)
    assert ("b" in found) == (2 * first + second + 6 <= PROPERTIES_BYTES_MAX)


def test_the_tag_is_the_last_one() -> None:
    assert tag_of([("TAGS", b"a"), ("x", b""), ("TAGS", b"b")]) == "b"
    assert tag_of([]) == tag_of([("TAGS", None)]) == ""


def test_flags_that_another_door_wrote() -> None:
    message = message_of((5, 99, None, b"plain", [("rocketmq-sys-flag", b"769")]), "orders", 0, 1, HERE)
    assert message.sys_flag == 0, "clients would unpack what is not compressed"
