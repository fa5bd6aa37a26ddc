"""The kernel of RocketMQ's sends, held against what the door makes of the same frames as commands."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.doors.rocketmq.formats import encode_batch
from tests.kernels.conftest import interpreted_together

from headrace.doors.rocketmq import frames
from headrace.doors.rocketmq.frames import ONE_WAY, Command
from headrace.doors.rocketmq.messages import BatchedMessage, Host, decode_batch, offset_id, read_properties
from headrace.doors.rocketmq.records import headers_of, key_of
from headrace.doors.rocketmq.remoting import send_wire
from headrace.errors import HeadraceError
from headrace.format import records

SOURCE = "doors.rocketmq.remoting.send_wire"
KERNELS = pytest.mark.parametrize(
    "kernel", [send_wire, interpreted_together("format.records", SOURCE)[SOURCE]], ids=["installed", "interpreted"]
)
HOST = Host(bytes((127, 0, 0, 1)), 1234)
NOW = 1_700_000_000_000
BODY_MAX = 4_194_304
PROPERTIES = "UNIQ_KEY\x010A\x02TAGS\x01red\x02__SHARDINGKEY\x01k\x02no pair\x02a\x01b\x01c\x02\x01\x02WAIT\x01true"
FIELDS = {"a": "p", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700", "h": "0", "j": "0"}


def escaped(text: str) -> str:
    """As Java's clients write it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\x01", "\\u0001").replace("\x02", "\\u0002")


def frame(fields: dict[str, str], body: bytes = b"body", code: int = 310, flag: int = 0, opaque: int = 7) -> bytearray:
    written = ",".join(f'"{name}":"{escaped(value)}"' for name, value in fields.items())
    header = (
        f'{{"code":{code},"extFields":{{{written}}},"flag":{flag},"language":"JAVA","opaque":{opaque},'
        '"serializeTypeCurrentRPC":"JSON","version":513}'
    ).encode()
    return bytearray(frames.HEAD.pack(4 + len(header) + len(body), len(header)) + header + body)


def rows(command: Command) -> list[tuple[Any, ...]]:
    """The records of a send as the door makes them of commands."""
    given, found = command.fields, []
    messages = [BatchedMessage(int(given.get("h", 0)), command.body, given.get("i", ""))]
    if command.code == 320 or given.get("m") == "true":
        messages = list(decode_batch(command.body))
    for flag, body, text in messages:
        properties = read_properties(text)
        born_ms, sys_flag = int(given.get("g", 0)), int(given.get("f", 0))
        headers = headers_of(properties, born_ms=born_ms, born_host=HOST, flag=flag, sys_flag=sys_flag)
        found.append((NOW, key_of(properties), body, headers))
    return found


def parse(kernel: ModuleType, raw: bytearray, before: int = 0) -> Any:
    host = kernel.header(kernel.BORN_HOST, str(HOST).encode())
    shifted = bytearray(before) + raw + b"\xff" * 9
    return kernel.parse(shifted, before, before + len(raw), host, BODY_MAX)


def check(kernel: ModuleType, raw: bytearray, before: int = 0) -> Any:
    """What the kernel makes of a frame, if anything, is what the door makes of it."""
    send = parse(kernel, raw, before)
    if send is None:
        return None
    command = frames.decode(bytes(raw))
    assert (send.code, send.opaque, send.is_one_way) == (command.code, command.opaque, command.is_one_way)
    assert (send.topic.decode(), send.queue_id) == (command.fields["b"], int(command.fields["e"]))
    assert send.body_bytes == len(command.body)
    unique_key = read_properties(command.fields.get("i", "")).get("UNIQ_KEY")
    assert send.unique_key == (None if unique_key is None else unique_key.encode())
    made = rows(command)
    assert kernel.build([send], NOW) == records.build(made)
    assert kernel.build([send, send], NOW) == records.build(made * 2)
    assert send.size >= sum(len(tail) for tail in send.tails)
    host = offset_id(HOST, 0)[:-16].encode()
    fields = {
        "msgId": ",".join(offset_id(HOST, (5 << 39) + 40 + number) for number in range(len(made))),
        "queueId": "3",
        "queueOffset": "40",
    }
    if unique_key is not None:
        fields["transactionId"] = unique_key
    answer = frames.encode(Command(0, command.opaque, frames.RESPONSE, fields))
    assert kernel.answer(send, host, b"3", 40, (5 << 39) + 40) == answer
    return send


@KERNELS
@pytest.mark.parametrize("flag", [0, ONE_WAY])
def test_a_send_is_stored_as_the_door_stores_it(kernel: ModuleType, flag: int) -> None:
    assert check(kernel, frame(FIELDS, b""))
    assert check(kernel, frame(FIELDS | {"i": PROPERTIES}, b"x" * 1_000, flag=flag, opaque=2_147_483_647), before=3)
    assert check(kernel, frame(FIELDS | {"i": PROPERTIES, "h": "7", "f": "2", "m": "false", "k": "x", "n": "b"}))
    assert check(kernel, frame({"b": "t", "e": "0"}))
    assert check(kernel, frame(FIELDS | {"b": "blå", "i": 'color\x01bl\\"å/\x02'}))


# As `DefaultMQProducer` of 4.9.8 and of 5.3.2 write them.
JAVA = (
    b'{"code":310,"extFields":{"a":"producers","b":"topic-4","c":"TBW102","d":"4","e":"3","f":"0","g":"1795061104610",'
    b'"h":"7","i":"color\\u0001bl\xc3\xa5\\u0002KEYS\\u0001key0\\u0002UNIQ_KEY\\u0001FD01\\u0002WAIT\\u0001true'
    b'\\u0002TAGS\\u0001even","j":"0","k":"false","m":"false","n":"headrace"},"flag":0,"language":"JAVA","opaque":6,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}',
    b'{"code":310,"extFields":{"a":"producers","b":"topic-5","c":"TBW102","d":"4","e":"1","f":"0","g":"1795061107451",'
    b'"h":"7","i":"color\\u0001bl\xc3\xa5\\u0002KEYS\\u0001key0\\u0002UNIQ_KEY\\u0001FD01\\u0002WAIT\\u0001true'
    b'\\u0002TAGS\\u0001even\\u0002","j":"0","k":"false","m":"false","n":"headrace"},"flag":0,"language":"JAVA",'
    b'"opaque":6,"serializeTypeCurrentRPC":"JSON","version":477}',
)


@KERNELS
@pytest.mark.parametrize("header", JAVA, ids=["4.9.8", "5.3.2"])
def test_the_sends_of_javas_clients_are_taken(kernel: ModuleType, header: bytes) -> None:
    body = b"sync-0"
    assert check(kernel, bytearray(frames.HEAD.pack(4 + len(header) + len(body), len(header)) + header + body))


@KERNELS
def test_a_batch_is_stored_as_the_door_stores_it(kernel: ModuleType) -> None:
    messages = [
        BatchedMessage(number, b"%d" % number * number, f"KEYS\x01k{number}\x02å\x01ü\x02") for number in range(40)
    ]
    body = encode_batch(messages)
    for fields, code in ((FIELDS | {"m": "true", "f": "2"}, 310), (FIELDS, 320)):
        send = check(kernel, frame(fields | {"i": "UNIQ_KEY\x010A,0B\x02"}, body, code))
        assert len(send.tails) == 40


@KERNELS
@pytest.mark.parametrize(
    "fields",
    [
        *({"i": f"{name}\x01true\x02"} for name in ("DELAY", "TRAN_MSG", "REPLY_TO_CLIENT", "headrace-dedup-id")),
        *({"i": f"{name}\x015\x02"} for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")),
        *(
            {"i": each}
            for each in ("rocketmq-flag\x015\x02", "a\x01b\x02a\x01c\x02", 'UNIQ_KEY\x01"\x02', "a\x01\t\x02")
        ),
        *({"i": each} for each in ("x" * 32_768, "".join(f"{number}\x01\x02" for number in range(49)))),
        *({"f": each} for each in ("1", "4", "8", "12", "256", "-1", "", "x", "9" * 19, "01")),
        *({name: "-1"} for name in ("e", "g", "h", "d", "j")),
        *({"j": "1"}, {"m": "TRUE"}, {"b": "%RETRY%g"}, {"b": ""}, {"AccessKey": "k"}, {"z": "1"}, {"e": "2147483648"}),
    ],
)
def test_what_is_more_than_an_append_is_left_alone(kernel: ModuleType, fields: dict[str, str]) -> None:
    assert parse(kernel, frame(FIELDS)) is not None
    assert parse(kernel, frame(FIELDS | fields)) is None


@KERNELS
def test_frames_that_are_not_like_the_others_are_left_alone(kernel: ModuleType) -> None:
    good = bytes(frame(FIELDS, b"body"))
    assert parse(kernel, bytearray(good)) is not None
    replaced = [
        *((b'"code":310', b'"code":330'), (b'"opaque":7', b'"opaque":-'), (b'"flag":0', b'"flag":1')),
        *((b'"version":513', b'"version": 13'), (b'"b":"topic"', b'"b":"topi\\"'), (b'"b":"topic"', b'"b":"top\xffc"')),
        *((b'"JSON"', b'"JSOM"'), (b"513}", b"513]"), (b'"JAVA"', b'"JA\\"A'), (b'{"a"', b'{"aa"')),
        (b'"a":"p"', b'"a":\n"p"'),
    ]
    for old, new in replaced:
        assert old in good
        assert parse(kernel, bytearray(good.replace(old, new))) is None, new
    for byte in (1, 2):
        # Another serialization, and a header that is longer than the frame.
        assert parse(kernel, bytearray(good[:4] + bytes((byte,)) + good[5:])) is None
        assert parse(kernel, bytearray(good[:5] + bytes((byte,)) + good[6:])) is None
    assert kernel.parse(bytearray(good), 0, len(good), b"", 3) is None, "larger than messages may be"
    assert kernel.parse(bytearray(good), 0, len(good), b"", 4) is not None


@KERNELS
def test_batches_that_are_not_like_the_others_are_left_alone(kernel: ModuleType) -> None:
    message = encode_batch([BatchedMessage(0, b"body", "a\x01b\x02")])
    assert parse(kernel, frame(FIELDS, message, 320)) is not None
    broken = message[:16] + b"\xff" * 4 + message[20:]
    for body in (b"", message + b"\0", message[:-1], message[:21], b"\xff" * 40, broken):
        assert parse(kernel, frame(FIELDS, body, 320)) is None
    long = b"\0" * 20 + (40_000).to_bytes(2, "big") + b"x" * 40_000
    assert parse(kernel, frame(FIELDS, len(long).to_bytes(4, "big") + long[4:], 320)) is None
    for text in ("DELAY\x011\x02", "a\x01b\x02a\x01c\x02"):
        assert parse(kernel, frame(FIELDS, message + encode_batch([BatchedMessage(0, b"", text)]), 320)) is None
    wide = message.replace(b"b\x02", b"\xff\x02")
    assert parse(kernel, frame(FIELDS, wide, 320)) is None
    most = message * (131_072 // len(message))
    assert parse(kernel, frame(FIELDS, most, 320)) is not None
    assert parse(kernel, frame(FIELDS, most + message, 320)) is None


texts = st.text(st.sampled_from('aA1\x01\x02"\\/å€😀 \t'), max_size=12)


@KERNELS
@given(
    properties=st.lists(st.tuples(texts, texts), max_size=5),
    fields=st.dictionaries(
        st.sampled_from("acdefghjklmnb"), st.sampled_from(["0", "1", "7", "true", "false", "ö", ""])
    ),
    body=st.binary(max_size=40),
    code=st.sampled_from([310, 320]),
)
def test_any_send(
    kernel: ModuleType, properties: list[tuple[str, str]], fields: dict[str, str], body: bytes, code: int
) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties)
    if code == 320:
        body = encode_batch([BatchedMessage(1, body, text), BatchedMessage(0, body, "")])
    check(kernel, frame(FIELDS | {"i": text} | fields, body, code))


@KERNELS
@given(at=st.integers(8, 220), bytes_in=st.binary(min_size=1, max_size=3), code=st.sampled_from([310, 320]))
@example(at=40, bytes_in=b"\\", code=310)
def test_garbage_in_a_frame(kernel: ModuleType, at: int, bytes_in: bytes, code: int) -> None:
    body = encode_batch([BatchedMessage(0, b"some body", "KEYS\x01k\x02")])
    raw = frame(FIELDS | {"i": PROPERTIES}, body, code)
    raw[at : at + len(bytes_in)] = bytes_in
    try:
        frames.decode(bytes(raw))
    except HeadraceError:
        assert parse(kernel, raw) is None
    else:
        check(kernel, raw)
