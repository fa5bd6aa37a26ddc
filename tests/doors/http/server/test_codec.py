from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.longer import examples

from headrace.doors.http.server.codec import Codec
from headrace.doors.http.server.grammar import Grammar
from headrace.doors.http.server.messages import HEAD_MAX_BYTES, HttpError, Request, Response

BODY_MAX_BYTES = 65_536


def fed(data: bytes) -> Codec:
    codec = Codec(BODY_MAX_BYTES)
    codec.feed(data)
    return codec


def test_a_request_is_handed_out_when_it_is_whole():
    codec = Codec(BODY_MAX_BYTES)
    whole = b"POST /a%20b?c=d HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
    for byte in whole[:-1]:
        codec.feed(bytes([byte]))
        assert codec.next_request() is None
    codec.feed(whole[-1:])
    assert codec.next_request() == Request("POST", "/a b", "c=d", b"hello", {"host": "h", "content-length": "5"})


def test_headers_by_name():
    codec = fed(b"GET / HTTP/1.1\r\nHost: h\r\nX-Two: a\r\nx-two: b\xff\r\n\r\n")
    request = codec.next_request()
    assert request is not None
    assert request.headers == {"host": "h", "x-two": "a, b\xff"}


def test_parameters_are_unquoted_and_the_first_of_a_name_counts():
    request = Request("GET", "/", "a=1&b=x%20y+z&a=2&c&d=", b"")
    assert request.parameters() == {"a": "1", "b": "x y z", "c": "", "d": ""}


def test_a_response_carries_its_length_and_keeps_the_connection():
    codec = fed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert codec.next_request() is not None
    out = codec.respond(Response(b"body", status=404))
    assert out.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"content-length: 4\r\n" in out.lower()
    assert out.endswith(b"\r\n\r\nbody")
    assert not codec.closing
    assert codec.idle


def test_pipelined_requests_come_one_by_one():
    codec = fed(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
    for path in ("/1", "/2"):
        request = codec.next_request()
        assert request is not None
        assert request.path == path
        codec.respond(Response(b""))
    assert codec.next_request() is None


def test_head_gets_the_length_without_the_body():
    codec = fed(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    codec.next_request()
    out = codec.respond(Response(b"body"))
    assert b"content-length: 4\r\n" in out.lower()
    assert out.endswith(b"\r\n\r\n")


def test_connection_close_is_kept():
    codec = fed(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    codec.next_request()
    assert b"connection: close" in codec.respond(Response(b"")).lower()
    assert codec.closing


def test_a_client_that_waits_is_told_to_go_on():
    codec = fed(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert codec.next_request() is None
    assert codec.continues().startswith(b"HTTP/1.1 100")
    assert codec.continues() == b""
    codec.feed(b"ok")
    request = codec.next_request()
    assert request is not None
    assert request.body == b"ok"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /" + b"a" * HEAD_MAX_BYTES, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_MAX_BYTES, 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (BODY_MAX_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: magic\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (BODY_MAX_BYTES + 1)
            + bytes(BODY_MAX_BYTES + 1),
            413,
        ),
    ],
)
def test_what_is_refused_is_answered_and_the_connection_ends(data, status):
    codec = fed(data)
    with pytest.raises(HttpError) as refused:
        codec.next_request()
    assert refused.value.status == status
    out = codec.respond(Response(b"no", status=status))
    assert out.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in out.lower()
    assert codec.closing


@given(st.lists(st.one_of(st.binary(max_size=64), st.sampled_from([b"GET / HTTP/1.1\r\n", b"Host: h\r\n", b"\r\n"]))))
def test_any_bytes_give_requests_or_a_refusal(pieces):
    codec = Codec(BODY_MAX_BYTES)
    for piece in pieces:
        codec.feed(piece)
        try:
            while codec.next_request() is not None:
                codec.respond(Response(b"x"))
                if codec.closing:
                    return
        except HttpError as refusal:
            status = refusal.status
            break
    else:
        return
    assert 400 <= status < 600
    assert codec.respond(Response(b"x", status=status))


# Each is mostly ordinary, so that what is odd stands among what is not.
NAMES = [b"X-A", b"Accept", b"Content-Length", b"Connection", b"hOST", b"Transfer-Encoding", b"Expect", b"Upgrade"]
VALUES = [
    b"3",
    b"0",
    b"h",
    b"",
    b"+3",
    b"3,3",
    b"close",
    b"Keep-Alive",
    b"x, close",
    b"chunked",
    b"a\tb\xe9",
    b"a\x01b",
]
HEADERS = st.lists(
    st.one_of(
        st.just(b"Accept: */*\r\n"),
        st.just(b"Content-Length: 3\r\n"),
        st.builds(
            lambda name, before, value, after: name + b":" + before + value + after + b"\r\n",
            st.sampled_from(NAMES),
            st.sampled_from([b" ", b"", b"\t "]),
            st.sampled_from(VALUES),
            st.sampled_from([b"", b" "]),
        ),
    ),
    max_size=3,
).map(b"".join)
REQUESTS = st.builds(
    lambda method, target, version, host, headers, body: (
        method + b" " + target + b" " + version + b"\r\n" + host + headers + b"\r\n" + body
    ),
    st.one_of(st.just(b"POST"), st.sampled_from([b"GET", b"PUT", b"DELETE", b"HEAD", b"get", b"OPTIONS"])),
    st.one_of(st.just(b"/a%20b?c=d%"), st.sampled_from([b"/a?b?c#d", b"*", b"http://h/a", b"/\xff", b"//", b"/a b"])),
    st.one_of(st.just(b"HTTP/1.1"), st.just(b"HTTP/1.1"), st.sampled_from([b"HTTP/1.0", b"HTTP/2", b"http/1.1"])),
    st.one_of(st.just(b"Host: h\r\n"), st.just(b"Host: h\r\n"), st.just(b"")),
    HEADERS,
    st.sampled_from([b"abc", b"", b"3\r\nabc\r\n0\r\n\r\n"]),
)


def told(codec: Codec | Grammar, data: bytes, step: int) -> list[object]:
    """Everything that a codec makes of bytes that come in pieces, up to their end."""
    events: list[object] = []
    for piece in [*(data[at : at + step] for at in range(0, len(data), step)), b""]:
        codec.feed(piece)
        try:
            while (request := codec.next_request()) is not None:
                out = codec.respond(Response(b"body", headers=(("X-B", "c"),)))
                head, _, body = out.partition(b"\r\n\r\n")
                events.append((request, sorted(head.lower().split(b"\r\n")), body, codec.closing))
                if codec.closing:
                    return events
        except HttpError as refused:
            return [*events, refused.status, refused.path]
    return events


@settings(max_examples=examples(500))
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=3),
    step=st.sampled_from([1, 7, 1000]),
    noise=st.one_of(st.just(b""), st.binary(max_size=2)),
    place=st.floats(0, 1),
)
def test_what_is_plain_is_read_as_the_grammar_reads_it(requests, step, noise, place):
    data = b"".join(requests)
    at = int(place * len(data))
    data = data[:at] + noise + data[at:]
    assert told(Codec(10), data, step) == told(Grammar(10), data, step)


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: x, close",
        b"Connection: x",
        b"X-A: a\x01b",
        b"X-A: a\x00",
        b"X-A : b",
        b" folded",
        b"X-A",
        b"Te: x",
    ],
)
def test_what_is_odd_is_left_to_the_grammar(line):
    data = b"GET / HTTP/1.1\r\nHost: h\r\n" + line + b"\r\n\r\n" + b"GET /2 HTTP/1.1\r\nHost: h\r\n\r\n"
    codec = Codec(10)
    assert told(codec, data, 1000) == told(Grammar(10), data, 1000)
    assert codec._grammar is not None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /pub?topic=t HTTP/1.1\r\nHost: 127.0.0.1:4151\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
        b"Content-Length: 5\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\nhello",
        b"GET /stats HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"PUT /config/log_level HTTP/1.1\r\nAccept-Encoding: identity\r\nContent-Length: 4\r\nHost: h\r\n"
        b"Connection: keep-alive\r\n\r\ninfo",
    ],
)
def test_ordinary_requests_are_plain(data):
    codec = fed(data)
    assert codec.next_request() is not None
    assert codec._grammar is None


def test_an_answer_before_all_of_a_request_came_is_the_last():
    codec = fed(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab")
    assert codec.next_request() is None
    assert b"\r\nConnection: close\r\n" in codec.respond(Response(b"late", status=408))
    assert codec.closing


def test_headers_that_cannot_be_sent():
    for header in (("X-A", "a\r\nX-B: b"), ("X-A\n", "a"), ("X-A", "\u20ac")):
        codec = fed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        codec.next_request()
        with pytest.raises(ValueError, match=r"cannot be sent|encode"):
            codec.respond(Response(b"", headers=(header,)))


def test_a_head_that_trickles_in_is_looked_through_once():
    codec = Codec(10)
    codec.feed(b"GET / HTTP/1.1\r\n")
    for _ in range(HEAD_MAX_BYTES // 16):
        codec.feed(b"X-A: bc\r\n")
        assert codec.next_request() is None
        assert codec._searched == len(codec._buffer)
