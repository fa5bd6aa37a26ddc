"""Messages of the protos, as records of the log and back.

What the proto has as a field RocketMQ has as a property, and so has the record as a header (`headrace.doors.rocketmq.
records`): a message that was sent over gRPC is the same to a consumer over remoting, and the other way round.
"""

from __future__ import annotations

from hashlib import md5
from typing import Any

from headrace.broker.publish import Headers
from headrace.doors.rocketmq.grpc.protocol import Code, Proto, definition
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.doors.rocketmq.messages import COMPRESSED, Host, StoredMessage, read_properties
from headrace.doors.rocketmq.records import PRIORITY, SHARDING_KEY, TAGS, UNIQUE_KEY, headers_of, priority_of
from headrace.doors.rocketmq.records import TIMER_AT_MS as DELIVER_MS
from headrace.doors.rocketmq.transactions import PRODUCER_GROUP, TRANSACTION_PREPARED
from headrace.doors.rocketmq.unpacking import unpack

_d: Any = definition
KEYS = "KEYS"
TRACE_CONTEXT = "TRACE_CONTEXT"
DEAD_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
# The properties that are RocketMQ's own: clients of gRPC neither set nor see them as properties of the user.
SYSTEM_PROPERTIES = frozenset(
    (
        *("1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CLUSTER", "CONSUME_START_TIME"),
        *("CORRECTION_FLAG", "CORRELATION_ID", "DELAY", DEAD_MESSAGE_ID, DEAD_TOPIC, "DUP_INFO", "EXTEND_UNIQ_INFO"),
        *("INNER_MULTI_QUEUE_OFFSET", "INSTANCE_ID", KEYS, "MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET"),
        *("MQ2_FLAG", "MSG_REGION", "MSG_TYPE", "ORIGIN_GROUP", "ORIGIN_MESSAGE_ID", PRODUCER_GROUP, "POP_CK"),
        *("POP_CK_OFFSET", "PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT"),
        *("RETRY_TOPIC", TAGS, "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", DELIVER_MS),
        *("TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_ON"),
        *("TRANSFER_FLAG", TRANSACTION_PREPARED, "TRAN_PREPARED_QUEUE_OFFSET", "TTL", UNIQUE_KEY, "WAIT"),
        *(PRIORITY, "__BORNHOST", "__CRC32#", "__LITE_TOPIC"),
    )
)
# These have fields of their own, too.
_FIELDS = SYSTEM_PROPERTIES | {SHARDING_KEY, TRACE_CONTEXT}
KEY_SEPARATOR = " "
# As RocketMQ's proxy has them.
PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16_384
MESSAGE_GROUP_MAX = 64


# --- in ---------------------------------------------------------------------------------------------------------------


def check_message(message: Proto, body_max: int) -> None:
    """Raise ResponseError where a message cannot be taken."""
    system = message.system_properties
    if not system.message_id:
        raise ResponseError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if not message.body:
        raise ResponseError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(message.body) > body_max:
        raise ResponseError(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(message.body)} bytes, and at most {body_max} are taken (rocketmq_max_message_size)",
        )
    if system.HasField("tag"):
        _check_text(system.tag, "tag", Code.ILLEGAL_MESSAGE_TAG)
        if "|" in system.tag:
            raise ResponseError(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    for key in system.keys:
        _check_text(key, "key", Code.ILLEGAL_MESSAGE_KEY)
    if system.HasField("message_group"):
        _check_text(system.message_group, "message group", Code.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) > MESSAGE_GROUP_MAX:
            raise ResponseError(Code.ILLEGAL_MESSAGE_GROUP, f"message group exceeds the max size {MESSAGE_GROUP_MAX}")
    _check_properties(message.user_properties)


def _check_text(text: str, what: str, code: int) -> None:
    if not text.strip():
        raise ResponseError(code, f"{what} cannot be the char sequence of whitespace")
    if _has_control(text):
        raise ResponseError(code, f"{what} cannot contain control character")


def _check_properties(properties: Proto) -> None:
    if len(properties) > PROPERTIES_MAX:
        raise ResponseError(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {PROPERTIES_MAX}")
    size = 0
    for name, value in properties.items():
        if name in SYSTEM_PROPERTIES:
            raise ResponseError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _has_control(name) or _has_control(value):
            raise ResponseError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "key and value of a property cannot contain control character"
            )
        size += len(name.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise ResponseError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {PROPERTIES_BYTES_MAX}",
        )


def _has_control(text: str) -> bool:
    return any(each < " " or "\x7f" <= each <= "\x9f" for each in text)


def read_message(message: Proto, born_host: Host, topic: str) -> tuple[bytes | None, Headers]:
    """Key and headers of the record that a message becomes."""
    system = message.system_properties
    properties: dict[str, str] = dict(message.user_properties)
    properties[UNIQUE_KEY] = system.message_id
    if system.HasField("tag"):
        properties[TAGS] = system.tag
    if system.keys:
        properties[KEYS] = KEY_SEPARATOR.join(system.keys)
    if system.HasField("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    if system.HasField("message_group"):
        properties[SHARDING_KEY] = system.message_group
    if system.HasField("delivery_timestamp"):
        properties[DELIVER_MS] = str(to_ms(system.delivery_timestamp))
    if has_priority(message):
        properties[PRIORITY] = str(system.priority)
    if system.message_type == _d.TRANSACTION:
        properties[PRODUCER_GROUP] = topic
    headers = headers_of(properties, born_ms=to_ms(system.born_timestamp), born_host=born_host)
    return (system.message_group.encode() if system.HasField("message_group") else None), headers


def has_priority(message: Proto) -> bool:
    """Whether a message has a priority that counts: in one of another type it is left out, as by RocketMQ's broker."""
    system = message.system_properties
    is_other = system.HasField("message_group") or system.HasField("delivery_timestamp")
    return bool(system.HasField("priority")) and not is_other and system.message_type != _d.TRANSACTION


def type_of(message: Proto) -> int:
    """The type of a message, as by RocketMQ's proxy: one that has a priority has it, whatever type it says."""
    return int(_d.PRIORITY if has_priority(message) else message.system_properties.message_type)


def unpack_body(message: Proto, body_max: int, here_bytes: int) -> bytes:
    """The body of a message, unpacked where its producer has compressed it. As `unpack`."""
    body: bytes = message.body
    return unpack(COMPRESSED, body, body_max, here_bytes) if is_packed(message) else body


def is_packed(message: Proto) -> bool:
    """Whether the producer has compressed the body."""
    return bool(message.system_properties.body_encoding == _d.GZIP)


# --- out --------------------------------------------------------------------------------------------------------------


def write_message(stored: StoredMessage, topic: Proto) -> Proto:
    """A stored message, of a topic as its client names it."""
    properties = read_properties(stored.properties)
    system = _d.SystemProperties(
        message_id=properties.get(UNIQUE_KEY, ""),
        # As RocketMQ's proxy has it: clients differ in how they write a CRC.
        body_digest=_d.Digest(type=_d.MD5, checksum=md5(stored.body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=_d.IDENTITY,
        message_type=_type_of(properties),
        born_host=str(stored.born_host),
        store_host=str(stored.store_host),
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        delivery_attempt=stored.reconsume_times + 1,
    )
    set_ms(system.born_timestamp, stored.born_ms)
    set_ms(system.store_timestamp, stored.store_ms)
    if tag := properties.get(TAGS):
        system.tag = tag
    if keys := properties.get(KEYS):
        system.keys.extend(keys.split(KEY_SEPARATOR))
    if (group := properties.get(SHARDING_KEY)) is not None:
        system.message_group = group
    if (trace := properties.get(TRACE_CONTEXT)) is not None:
        system.trace_context = trace
    if (priority := priority_of(properties)) >= 0:
        system.priority = priority
    deliver_ms = properties.get(DELIVER_MS, "")
    if deliver_ms.isdecimal() and len(deliver_ms) <= 15:
        set_ms(system.delivery_timestamp, int(deliver_ms))
    if DEAD_TOPIC in properties:
        system.dead_letter_queue.topic = properties[DEAD_TOPIC]
        system.dead_letter_queue.message_id = properties.get(DEAD_MESSAGE_ID, "")
    user = {name: value for name, value in properties.items() if name not in _FIELDS}
    return _d.Message(topic=topic, user_properties=user, system_properties=system, body=stored.body)


def _type_of(properties: dict[str, str]) -> int:
    if properties.get(TRANSACTION_PREPARED) == "true":
        return int(_d.TRANSACTION)
    if DELIVER_MS in properties or "DELAY" in properties:
        return int(_d.DELAY)
    if SHARDING_KEY in properties:
        return int(_d.FIFO)
    return int(_d.NORMAL if priority_of(properties) < 0 else _d.PRIORITY)


# --- times and durations, of any value that there is ------------------------------------------------------------------


def to_ms(time: Proto) -> int:
    """A Timestamp or a Duration in milliseconds."""
    return int(time.seconds) * 1_000 + int(time.nanos) // 1_000_000


def set_ms(time: Proto, milliseconds: int) -> None:
    """Make a Timestamp or a Duration of milliseconds."""
    time.seconds, rest = divmod(milliseconds, 1_000)
    time.nanos = rest * 1_000_000
