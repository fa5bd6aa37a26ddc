from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.doors.web.codec import HEAD_MAX_BYTES, Codec, RequestRefused
from headrace.doors.web.messages import Request, Response

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
    with pytest.raises(RequestRefused) as refused:
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
        except RequestRefused as refusal:
            status = refusal.status
            break
    else:
        return
    assert 400 <= status < 600
    assert codec.respond(Response(b"x", status=status))
