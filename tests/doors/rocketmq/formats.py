"""What a client of RocketMQ does with messages: it reads those of a pull, and writes batches."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from headrace.doors.rocketmq.messages import (
    _BATCH_HEAD,
    _HEAD,
    _INT16,
    _INT32,
    _INT64,
    _MIDDLE,
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    BatchedMessage,
    Host,
    StoredMessage,
    body_crc,
    read_properties,
)
from headrace.doors.rocketmq.records import ADDED
from headrace.errors import InvalidRecords


def decode_all(buffer: bytes) -> Iterator[StoredMessage]:
    """The messages that the answer to a pull carries."""
    position = 0
    while position < len(buffer):
        message, position = decode(buffer, position)
        yield message


def given_properties(message: StoredMessage) -> dict[str, str]:
    """The properties of a message but for those that the broker adds to each."""
    properties = read_properties(message.properties)
    assert ADDED.items() <= properties.items()
    return {name: value for name, value in properties.items() if name not in ADDED}


def decode(buffer: bytes, position: int = 0) -> tuple[StoredMessage, int]:
    """The message at a position, and the position behind it. Raises InvalidRecords."""
    try:
        return _decode(buffer, position)
    except (struct.error, UnicodeDecodeError, IndexError):
        raise InvalidRecords(f"no message of RocketMQ's format is whole at byte {position}") from None


def _decode(buffer: bytes, start: int) -> tuple[StoredMessage, int]:
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = _HEAD.unpack_from(
        buffer, start
    )
    end = start + size
    if magic not in (MAGIC_V1, MAGIC_V2) or size < _HEAD.size or end > len(buffer):
        raise InvalidRecords(f"a message of {size} bytes with the magic {magic:#x} at byte {start}")
    born_host, position = _host(buffer, start + _HEAD.size, sys_flag & BORN_HOST_V6)
    (store_ms,) = _INT64.unpack_from(buffer, position)
    store_host, position = _host(buffer, position + 8, sys_flag & STORE_HOST_V6)
    reconsume_times, prepared_offset, length = _MIDDLE.unpack_from(buffer, position)
    body, position = _cut(buffer, position + _MIDDLE.size, length, end)
    if body_crc(body) != crc:
        raise InvalidRecords(f"the body of the message at byte {start} does not fit its checksum")
    if magic == MAGIC_V2:
        (length,) = _INT16.unpack_from(buffer, position)
        position += 2
    else:
        length = buffer[position]
        position += 1
    topic, position = _cut(buffer, position, length, end)
    (length,) = _INT16.unpack_from(buffer, position)
    properties, position = _cut(buffer, position + 2, length, end)
    if position != end:
        raise InvalidRecords(f"{end - position} bytes are left behind the message at byte {start}")
    message = StoredMessage(
        topic=topic.decode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=properties.decode(),
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        flag=flag,
        sys_flag=sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
    )
    return message, end


def _host(buffer: bytes, position: int, is_v6: int) -> tuple[Host, int]:
    length = 16 if is_v6 else 4
    (port,) = _INT32.unpack_from(buffer, position + length)
    return Host(buffer[position : position + length], port), position + length + 4


def _cut(buffer: bytes, position: int, length: int, end: int) -> tuple[bytes, int]:
    if not 0 <= length <= end - position:
        raise InvalidRecords(f"a field of {length} bytes where {end - position} are left")
    return buffer[position : position + length], position + length


def encode_batch(messages: list[BatchedMessage]) -> bytes:
    """The body of a batch."""
    parts = []
    for flag, body, text in messages:
        properties = text.encode()
        size = _BATCH_HEAD.size + len(body) + 2 + len(properties)
        parts += (_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _INT16.pack(len(properties)), properties)
    return b"".join(parts)


def read_offset_id(text: str) -> tuple[Host, int]:
    """Address and physical offset of such an id. Raises InvalidRecords."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise InvalidRecords(f"{text[:80]!r} is no id of a message: it has 32 hexadecimal digits, or 56 for IPv6")
    return Host(raw[:-12], _INT32.unpack_from(raw, len(raw) - 12)[0]), _INT64.unpack_from(raw, len(raw) - 8)[0]
