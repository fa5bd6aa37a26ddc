"""Messages as RocketMQ's clients read and write them: the format of its commit log, of batches, ids and properties.

The answer to a pull carries messages as RocketMQ's commit log has them, one behind the other. A batch that a producer
sends has a shorter form. Properties are text: names and values with \\x01 between them, \\x02 behind each.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from headrace.errors import InvalidRecords

# The length of the topic is one byte in the first form, two in the second.
MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
TOPIC_BYTES_V1 = 127

# System flags.
COMPRESSED = 0x1
TRANSACTION = 0xC
PREPARED = 0x4
COMMITTED = 0x8
ROLLED_BACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 0x700

NAME_VALUE = "\x01"
PROPERTY = "\x02"
PROPERTIES_BYTES_MAX = 32_767

# Size, magic, CRC of the body, queue, flag, offset in the queue, physical offset, system flag, time of birth.
_HEAD = Struct(">iIiiiqqiq")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
# Times consumed, offset of the prepared message, and the length of the body.
_MIDDLE = Struct(">iqi")
# Of a message in a batch: size, magic, CRC of the body, flag, length of the body.
_BATCH_HEAD = Struct(">iiiii")


class Host(NamedTuple):
    """An address, of IPv4 in 4 bytes or of IPv6 in 16, and a port."""

    ip: bytes
    port: int

    @classmethod
    def of(cls, text: str, port: int) -> Host:
        """That of an address in text; what is no address becomes 0.0.0.0. One of IPv4 that came by IPv6 is one of IPv4,
        as to Java."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return cls(bytes(4), port)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return cls((mapped or address).packed, port)

    def __str__(self) -> str:
        text = str(ipaddress.ip_address(self.ip))
        return f"[{text}]:{self.port}" if len(self.ip) == 16 else f"{text}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Host:
        """The address that `str` wrote. Raises ValueError."""
        host, _, port = text.rpartition(":")
        return cls(ipaddress.ip_address(host.strip("[]")).packed, int(port))


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a pull answers it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: str
    born_ms: int
    born_host: Host
    store_ms: int
    store_host: Host
    flag: int = 0
    sys_flag: int = 0
    """Without the bits that the two hosts decide."""
    reconsume_times: int = 0
    prepared_offset: int = 0


def encode(message: StoredMessage) -> bytes:
    """A message as RocketMQ's commit log has it."""
    topic = message.topic.encode()
    properties = message.properties.encode()
    # Which of the two are of IPv6 decides how the message is read: another bit there would spoil all that follow.
    sys_flag = message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(message.born_host.ip) == 16:
        sys_flag |= BORN_HOST_V6
    if len(message.store_host.ip) == 16:
        sys_flag |= STORE_HOST_V6
    is_long = len(topic) > TOPIC_BYTES_V1
    rest = b"".join(
        (
            message.born_host.ip,
            _INT32.pack(message.born_host.port),
            _INT64.pack(message.store_ms),
            message.store_host.ip,
            _INT32.pack(message.store_host.port),
            _MIDDLE.pack(message.reconsume_times, message.prepared_offset, len(message.body)),
            message.body,
            _INT16.pack(len(topic)) if is_long else bytes((len(topic),)),
            topic,
            _INT16.pack(len(properties)),
            properties,
        )
    )
    head = _HEAD.pack(
        _HEAD.size + len(rest),
        MAGIC_V2 if is_long else MAGIC_V1,
        body_crc(message.body),
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        sys_flag,
        message.born_ms,
    )
    return head + rest


def body_crc(body: bytes) -> int:
    """The checksum of a body, without its sign bit as in RocketMQ."""
    return crc32(body) & 0x7FFFFFFF


# --- batches that a producer sends ------------------------------------------------------------------------------------


class BatchedMessage(NamedTuple):
    """A message of a batch."""

    flag: int
    body: bytes
    properties: str


def decode_batch(raw: bytes) -> Iterator[BatchedMessage]:
    """The messages of a batch. Raises InvalidRecords."""
    position = 0
    while position < len(raw):
        try:
            size, _, _, flag, length = _BATCH_HEAD.unpack_from(raw, position)
            end = position + size
            if size < _BATCH_HEAD.size + 2 or end > len(raw):
                raise InvalidRecords(f"a message of a batch has {size} bytes where {len(raw) - position} are left")
            body, at = _cut(raw, position + _BATCH_HEAD.size, length, end - 2)
            (length,) = _INT16.unpack_from(raw, at)
            properties, at = _cut(raw, at + 2, length, end)
            if at != end:
                raise InvalidRecords(f"{end - at} bytes are left behind a message of a batch")
            text = properties.decode()
        except (struct.error, UnicodeDecodeError):
            raise InvalidRecords(f"no message of a batch is whole at byte {position}") from None
        yield BatchedMessage(flag, body, text)
        position = end


def _cut(buffer: bytes, position: int, length: int, end: int) -> tuple[bytes, int]:
    if not 0 <= length <= end - position:
        raise InvalidRecords(f"a field of {length} bytes where {end - position} are left")
    return buffer[position : position + length], position + length


# --- properties -------------------------------------------------------------------------------------------------------


def write_properties(properties: Mapping[str, str]) -> str:
    """Properties as text."""
    return "".join(f"{name}{NAME_VALUE}{value}{PROPERTY}" for name, value in properties.items())


def read_properties(text: str) -> dict[str, str]:
    """The properties of a text; what is no pair is left out, as RocketMQ does."""
    found = {}
    for pair in text.split(PROPERTY):
        name, separator, value = pair.partition(NAME_VALUE)
        if separator and NAME_VALUE not in value:
            found[name] = value
    return found


def hash_tag(tag: str) -> int:
    """Java's hash of a string, by which tags are filtered."""
    number = 0
    units = tag.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (31 * number + (high << 8 | low)) & 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


# --- ids --------------------------------------------------------------------------------------------------------------


def offset_id(host: Host, physical_offset: int) -> str:
    """The id by which a message is found: the broker's address and the physical offset, in hexadecimal digits."""
    return (host.ip + _INT32.pack(host.port) + _INT64.pack(physical_offset)).hex().upper()
