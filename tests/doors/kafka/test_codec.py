"""The schema-driven codec against kio's own, for every API and version of the table, and against hostile lengths."""

from __future__ import annotations

import io
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records
from tests.longer import examples

from headrace.doors.kafka import codec
from headrace.doors.kafka.errors import Malformed
from headrace.doors.kafka.registry import APIS

st.register_type_strategy(Records, st.binary())

ALL = [(api.key, version) for api in APIS.values() for version in range(api.oldest, api.newest + 1)]
# Where a format changes most; building strategies for every version takes a minute.
EDGES = [
    (api.key, version)
    for api in APIS.values()
    for version in sorted({api.oldest, api.flexible - 1, api.flexible, api.newest})
    if api.oldest <= version <= api.newest
]


def as_dict(value: Any) -> Any:
    """An entity as the nested dicts that handlers return."""
    if is_dataclass(value):
        return {field.name: as_dict(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [as_dict(each) for each in value]
    return value


@pytest.mark.hypothesis
@pytest.mark.parametrize(("key", "version"), EDGES)
def test_requests_are_read_as_kio_wrote_them(key: int, version: int) -> None:
    kind = load_request_schema(key, version)

    @settings(max_examples=examples(8), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.from_type(kind))
    def check(entity: Any) -> None:
        buffer = io.BytesIO()
        entity_writer(kind)(buffer, entity)
        raw = buffer.getvalue()
        try:
            expected, _ = entity_reader(kind)(raw, 0)
        except ValueError:
            # The longest times that kio writes are more than it reads.
            reject()
        assert codec.decode_request(key, version, b"head" + raw, 4) == expected

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize(("key", "version"), EDGES)
def test_replies_are_read_by_kio_as_they_were_meant(key: int, version: int) -> None:
    kind = load_response_schema(key, version)

    @settings(max_examples=examples(8), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.from_type(kind))
    def check(entity: Any) -> None:
        buffer = io.BytesIO()
        entity_writer(kind)(buffer, entity)
        expected, _ = entity_reader(kind)(buffer.getvalue(), 0)
        values = as_dict(entity) | {"a_field_of_another_version": 1}
        raw = bytes(codec.encode_response(key, version, values))
        got, size = entity_reader(kind)(raw, 0)
        assert got == expected
        assert size == len(raw)

    check()


@pytest.mark.parametrize(("key", "version"), ALL)
def test_an_empty_dict_becomes_a_reply_of_defaults(key: int, version: int) -> None:
    raw = bytes(codec.encode_response(key, version, {}))
    _, size = entity_reader(load_response_schema(key, version))(raw, 0)
    assert size == len(raw)


def test_milliseconds_and_codes_may_be_plain_numbers() -> None:
    raw = bytes(codec.encode_response(12, 4, {"throttle_time": 7, "error_code": 27}))
    assert raw == b"\0\0\0\x07\0\x1b\0"


@pytest.mark.parametrize(
    ("version", "raw"),
    [
        (12, b"\xff\xff\xff\xff\x0f" * 4),
        (12, b"\xff\xff\xff\xff\x07"),
        (12, b"\0\0\0\xff\xff\xff\xff\x0f"),
        (12, b"\0\0\0\x01\0\xff\xff\xff\xff\x0fabc"),
        (12, b"\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (1, b"\x7f\xff\xff\xff"),
        (1, b"\xff\xff\xff\xfb"),
        (1, b"\0\0\0\x01\xff\xff"),
        (1, b"\0\0\0\x01\0\x02\xff\xfe"),
        (1, b""),
    ],
)
def test_hostile_lengths_are_refused_before_anything_is_allocated(version: int, raw: bytes) -> None:
    with pytest.raises(Malformed):
        codec.decode_request(3, version, raw, 0)


@pytest.mark.hypothesis
@pytest.mark.parametrize(("key", "version"), EDGES)
def test_garbage_is_malformed_or_a_request(key: int, version: int) -> None:
    @settings(max_examples=examples(15), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=120))
    def check(raw: bytes) -> None:
        try:
            codec.decode_request(key, version, raw, 0)
        except Malformed:
            pass

    check()


def test_for_ever_is_a_time() -> None:
    for retention in (2**63 - 1, -(2**63)):
        body = b"\0\1g" + (-1).to_bytes(4, "big", signed=True) + b"\0\0" + retention.to_bytes(8, "big", signed=True)
        request = codec.decode_request(8, 2, body + bytes(4), 0)
        assert abs(request.retention_time.days) > 100_000_000
