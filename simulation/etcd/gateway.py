"""etcd's requests and answers in JSON, as its gateway writes them.

Keys and values are in base64, 64-bit numbers are text, fields that have their default are left out, and names are those
of the protocol buffers; requests may also write them in camel case. Left out here: authentication, compaction,
transactions inside of transactions, ranges of comparisons, sorting.
"""

from __future__ import annotations

import json
import operator
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from simulation.etcd.store import Event, KeyValue, LeaseNotFound, Store

Fields = dict[str, Any]

NOT_FOUND, FAILED_PRECONDITION, UNIMPLEMENTED, UNAVAILABLE, INVALID_ARGUMENT = 5, 9, 12, 14, 3
STATUS = {INVALID_ARGUMENT: 400, NOT_FOUND: 404, FAILED_PRECONDITION: 400, UNIMPLEMENTED: 501, UNAVAILABLE: 503}
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EQUAL": operator.eq,
    "NOT_EQUAL": operator.ne,
    "GREATER": operator.gt,
    "LESS": operator.lt,
}
_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")


class Failure(Exception):
    """An error in etcd's form."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        return STATUS[self.code]

    def body(self) -> bytes:
        return json.dumps({"error": self.message, "code": self.code, "message": self.message}).encode()


def lease_not_found() -> Failure:
    return Failure(NOT_FOUND, "etcdserver: requested lease not found")


def decode_request(body: bytes) -> Fields:
    """The fields of a request, by the names of the protocol buffers."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise Failure(INVALID_ARGUMENT, str(error)) from None
    if not isinstance(fields, dict):
        raise Failure(INVALID_ARGUMENT, "json: cannot unmarshal into Go value")
    return {_name(key): _rename(value) for key, value in fields.items()}


def _rename(value: Any) -> Any:
    if isinstance(value, dict):
        return {_name(key): _rename(each) for key, each in value.items()}
    return [_rename(each) for each in value] if isinstance(value, list) else value


def _name(key: str) -> str:
    return _HUMP.sub(lambda hump: "_" + hump.group().lower(), key)


def encode(fields: Mapping[str, Any]) -> Fields:
    """Numbers as text, bytes in base64; what has its default is left out."""
    encoded: Fields = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            encoded[name] = value
        elif not value:
            continue
        elif isinstance(value, bytes):
            encoded[name] = b64encode(value).decode()
        elif isinstance(value, int) and not isinstance(value, bool):
            encoded[name] = str(value)
        else:
            encoded[name] = value
    return encoded


def encode_kv(kv: KeyValue) -> Fields:
    return encode(kv._asdict())


def encode_event(event: Event) -> Fields:
    return encode({"type": "DELETE" if event.is_delete else "", "kv": encode_kv(event.kv)})


def _bytes(fields: Fields, name: str) -> bytes:
    return b64decode(fields.get(name) or "")


def key_range(fields: Fields) -> tuple[bytes, bytes]:
    """The key and the end of a range."""
    key = _bytes(fields, "key")
    if not key:
        raise Failure(INVALID_ARGUMENT, "etcdserver: key is not provided")
    return key, _bytes(fields, "range_end")


def matches(kv: KeyValue, key: bytes, end: bytes) -> bool:
    """Whether a key lies in a range."""
    return kv.key == key if not end else kv.key >= key and (end == b"\0" or kv.key < end)


# Requests to the store. Each gives the fields of its answer, without the header.


def range_keys(store: Store, fields: Fields) -> Fields:
    found = store.range(*key_range(fields))
    limit = int(fields.get("limit", 0))
    if fields.get("count_only"):
        return encode({"count": len(found)})
    kept = found[:limit] if limit else found
    kvs = [kv._replace(value=b"") if fields.get("keys_only") else kv for kv in kept]
    return encode({"kvs": [encode_kv(kv) for kv in kvs], "more": len(kept) < len(found), "count": len(found)})


def put(store: Store, fields: Fields) -> Fields:
    key, _ = key_range(fields)
    try:
        before = store.put(store.revision + 1, key, _bytes(fields, "value"), int(fields.get("lease", 0)))
    except LeaseNotFound:
        raise lease_not_found() from None
    return encode({"prev_kv": encode_kv(before) if before and fields.get("prev_kv") else ""})


def delete_range(store: Store, fields: Fields) -> Fields:
    gone = store.delete(store.revision + 1, *key_range(fields))
    return encode({"deleted": len(gone), "prev_kvs": [encode_kv(kv) for kv in gone] if fields.get("prev_kv") else []})


def transact(store: Store, fields: Fields) -> Fields:
    """All comparisons, then all of one list of requests, in one revision."""
    succeeded = all(_compare(store, each) for each in fields.get("compare", ()))
    requests = fields.get("success" if succeeded else "failure", ())
    # A refused request must not leave the ones before it done.
    for request in requests:
        lease = int(request.get("request_put", {}).get("lease", 0))
        if lease and lease not in store.leases:
            raise lease_not_found()
    responses = []
    for request in requests:
        ((kind, body),) = request.items()
        handler = OPERATIONS.get(kind)
        if handler is None:
            raise Failure(UNIMPLEMENTED, f"the simulated etcd does not know {kind}")
        header = {"header": {"revision": str(store.revision + (kind != "request_range"))}}
        responses.append({kind.replace("request", "response"): header | handler(store, body)})
    return encode({"succeeded": succeeded, "responses": responses})


OPERATIONS = {"request_range": range_keys, "request_put": put, "request_delete_range": delete_range}


def _compare(store: Store, fields: Fields) -> bool:
    found = store.range(_bytes(fields, "key"), b"")
    # A key that is not there has zeroes everywhere, and compares with no value at all.
    kv = found[0] if found else KeyValue(b"", b"", 0, 0, 0, 0)
    compare = COMPARISONS[fields.get("result", "EQUAL")]
    target = fields.get("target", "VERSION")
    if target == "VALUE":
        return bool(found) and compare(kv.value, _bytes(fields, "value"))
    name = {"MOD": "mod_revision", "CREATE": "create_revision"}.get(target, target.lower())
    return compare(getattr(kv, name), int(fields.get(name, 0)))
