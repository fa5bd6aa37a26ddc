"""A client of etcd: its JSON gateway on the running loop, and no library.

The idea is honesty about writes. A request that was sent and not answered may have been carried out, or may be later:
a swap is then `Unknown`, and is never sent again here. What changes nothing that matters (reads, leases) is asked of
the next member until one answers.

What is called, all of it by POST with JSON, keys and values in base64, 64-bit numbers as text:

    /v3/auth/authenticate       a token for a user
    /v3/maintenance/status      on each new connection: version, and the id of the etcd cluster; where the user may not
                                ask for that, GET /version
    /v3/kv/range                reads, linearizable
    /v3/kv/txn                  compare-and-swap of one key by its revision
    /v3/lease/grant, keepalive, revoke
    /v3/watch                   a stream
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.addresses import format_address
from headrace.cluster.errors import EtcdError, EtcdRejected, EtcdUnavailable, OutcomeUnknown
from headrace.cluster.gateway import NOT_FOUND, Gateway, Rejected, connect

# For one request to one member, with connecting to it. Below the shortest lease, so that two members are asked in one.
ATTEMPT_SECONDS = 1.0
# Between two rounds through the members.
PAUSE_SECONDS = 0.2
# Of one member; others are closed after their request.
IDLE_MAX = 4
# etcd answers this where users are not asked for, and a user is configured: as its own client, this one goes on.
NO_USERS = "authentication is not enabled"

Address = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value."""

    key: str
    value: bytes
    revision: int
    """Of the last change of the key."""
    lease: int = 0
    """The lease that the key lives by; 0 for none."""


@dataclass(frozen=True, slots=True)
class View:
    """All keys under a prefix at one moment."""

    revision: int
    """Of all of etcd."""
    entries: Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Swapped:
    """The key has the new value."""

    revision: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The key has another revision than was expected. Nothing was changed."""

    current: Entry | None
    """None where there is no such key."""

    def holds(self, value: bytes) -> bool:
        """Whether the key has this value."""
        return self.current is not None and self.current.value == value


@dataclass(frozen=True, slots=True)
class Unknown:
    """The swap was sent, and no answer came: it was carried out, or will be, or never. Once the key is seen with
    another revision than the swap expected, it can no longer be."""

    reason: str


Outcome = Swapped | Refused | Unknown


class Etcd:
    """The members of one etcd. Which one is asked changes when it fails to answer in time."""

    def __init__(
        self,
        members: Sequence[Address],
        *,
        tls: ssl.SSLContext | None = None,
        user: str = "",
        password: str = "",
        attempt_seconds: float = ATTEMPT_SECONDS,
        patience_seconds: float = 0.0,
    ) -> None:
        """With patience, members that are reached and cannot answer are asked again."""
        self._members = list(members)
        """The next one to ask is the first."""
        self._tls = tls
        self._user = user
        self._password = password
        self._token = ""
        self._attempt_seconds = attempt_seconds
        self._patience_seconds = patience_seconds
        self._idle: dict[Address, list[Gateway]] = {member: [] for member in members}
        self._etcd_cluster = ""
        """The id of the one that answered first."""

    async def close(self) -> None:
        """Close the idle connections."""
        for member in self._members:
            self._close_idle(member)

    # --- keys ---

    async def read(self, key: str) -> Entry | None:
        """A key's entry, or None. Raises EtcdError."""
        return (await self._range({"key": _encode(key)})).entries.get(key)

    async def read_prefix(self, prefix: str) -> View:
        """All keys that begin with a prefix. Raises EtcdError."""
        return await self._range(_range_of(prefix))

    async def _range(self, body: Mapping[str, Any]) -> View:
        return await self._ask("/v3/kv/range", body, _view)

    async def swap(self, key: str, revision: int, value: bytes | None, *, lease: int = 0) -> Outcome:
        """Give a key a new value, or delete it (None), if its revision is still the one that was seen; 0 is the
        revision of a key that does not exist. Raises EtcdUnavailable and EtcdRejected where certainly nothing was
        changed."""
        encoded = _encode(key)
        change: dict[str, Any] = {"request_delete_range": {"key": encoded}}
        if value is not None:
            change = {"request_put": {"key": encoded, "value": b64encode(value).decode(), "lease": str(lease)}}
        body = {
            "compare": [{"key": encoded, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}],
            "success": [change],
            "failure": [{"request_range": {"key": encoded}}],
        }
        try:
            return await self._try_members(
                lambda member: self._call(member, "/v3/kv/txn", body, _outcome), repeatable=False
            )
        except OutcomeUnknown as error:
            return Unknown(str(error))

    # --- leases ---

    async def grant(self, seconds: int) -> int:
        """The id of a new lease. Raises EtcdError."""
        # One whose answer is lost holds no key, and expires.
        return await self._ask("/v3/lease/grant", {"TTL": str(seconds)}, lambda answer: int(answer["ID"]))

    async def keep_alive(self, lease: int) -> bool:
        """Begin a lease's time anew; whether the lease was still there. Raises EtcdError."""
        return await self._ask("/v3/lease/keepalive", {"ID": str(lease)}, lambda answer: int(answer.get("TTL", 0)) > 0)

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete the keys that live by it. Raises EtcdError."""
        try:
            await self._ask("/v3/lease/revoke", {"ID": str(lease)}, lambda answer: None)
        except Rejected as error:
            if error.grpc_code != NOT_FOUND:
                raise

    # --- watching ---

    async def watch(self, prefix: str) -> AsyncIterator[None]:
        """Comes once when the watch stands, and again whenever keys that begin with a prefix have changed. Ends where
        etcd ends the watch. A watch may hang, and then nothing comes any more: read as well. Raises EtcdError."""
        gateway = await self._try_members(self._ready)
        try:
            async for _ in gateway.stream("/v3/watch", {"create_request": _range_of(prefix)}, self._token):
                yield
        finally:
            gateway.close()

    # --- members ---

    async def versions(self) -> dict[str, str]:
        """By each member's address its version, or the sentence that says why it cannot be used."""
        found = {}
        for member in sorted(self._members):
            try:
                gateway = await self._ready(member)
            except EtcdError as error:
                found[format_address(*member)] = str(error)
            else:
                found[gateway.address] = gateway.version
                gateway.close()
        return found

    async def _ask(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """What is read of the answer to a request that may be carried out twice."""
        return await self._try_members(lambda member: self._call(member, path, body, read))

    async def _try_members(self, attempt: Callable[[Address], Awaitable[T]], *, repeatable: bool = True) -> T:
        """What an attempt at the first member that answers gives. After an attempt whose outcome is unknown the next
        member is tried only if the request is repeatable."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        while True:
            failures: list[EtcdError] = []
            for member in list(self._members):
                try:
                    return await attempt(member)
                except Rejected:
                    raise
                except EtcdError as error:
                    failures.append(error)
                    self._close_idle(member)
                    # Others may have tried it at the same time, and have moved it already.
                    self._members.remove(member)
                    self._members.append(member)
                    if isinstance(error, OutcomeUnknown) and not repeatable:
                        raise
            # A member that was reached will answer, once etcd has elected its leader.
            if loop.time() >= until or not any(isinstance(error, OutcomeUnknown) for error in failures):
                break
            await asyncio.sleep(PAUSE_SECONDS)
        if len(failures) == 1 and isinstance(failures[0], EtcdRejected):
            raise failures[0]
        reasons = "; ".join(map(str, failures))
        raise EtcdUnavailable(reasons if len(failures) == 1 else f"no member of etcd can be used: {reasons}")

    async def _call(
        self, member: Address, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]
    ) -> T:
        gateway = await self._ready(member)
        try:
            async with asyncio.timeout(self._attempt_seconds):
                answer = await self._as_user(gateway, lambda token: gateway.call(path, body, token))
                self._check_cluster(gateway, answer)
                return read(answer)
        except TimeoutError:
            raise OutcomeUnknown(f"{gateway.address} did not answer within {self._attempt_seconds:g} s") from None
        except (ValueError, TypeError, LookupError, AttributeError):
            raise OutcomeUnknown(f"{gateway.address} gave an answer that lacks what it must have") from None
        finally:
            idle = self._idle[member]
            if gateway.is_usable and len(idle) < IDLE_MAX:
                idle.append(gateway)
            else:
                gateway.close()

    async def _ready(self, member: Address) -> Gateway:
        """A connection that the user's token, if there is a user, goes with: an idle one, or a new one."""
        idle = self._idle[member]
        while idle:
            gateway = idle.pop()
            if gateway.is_usable:
                return gateway
            gateway.close()
        try:
            async with asyncio.timeout(self._attempt_seconds):
                gateway = await connect(*member, self._tls)
                try:
                    await self._introduce(gateway)
                except BaseException:
                    gateway.close()
                    raise
                return gateway
        except TimeoutError:
            raise EtcdUnavailable(
                f"{format_address(*member)} did not answer within {self._attempt_seconds:g} s"
            ) from None

    async def _introduce(self, gateway: Gateway) -> None:
        """Have the user and the member known to each other."""
        await self._authenticate(gateway)
        self._check_cluster(gateway, await self._as_user(gateway, gateway.identify))

    def _check_cluster(self, gateway: Gateway, answer: Mapping[str, Any]) -> None:
        """Refuse an answer of another etcd than the first one's: swaps in two of them would exclude nothing."""
        header = answer.get("header")
        found = str(header.get("cluster_id", "")) if isinstance(header, dict) else ""
        self._etcd_cluster = self._etcd_cluster or found
        if found not in ("", self._etcd_cluster):
            raise EtcdRejected(
                f"{gateway.address} belongs to another etcd ({found}) than the members before it "
                f"({self._etcd_cluster}). List the members of one etcd."
            )

    async def _as_user(self, gateway: Gateway, ask: Callable[[str], Awaitable[T]]) -> T:
        """Ask with the user's token; with a new one if that is no longer good."""
        try:
            return await ask(self._token)
        except Rejected as error:
            if not self._user or not error.is_token_invalid:
                raise
        self._token = ""
        await self._authenticate(gateway)
        return await ask(self._token)

    async def _authenticate(self, gateway: Gateway) -> None:
        if not self._user or self._token:
            return
        try:
            answer = await gateway.call("/v3/auth/authenticate", {"name": self._user, "password": self._password})
            self._token = str(answer["token"])
        except (OutcomeUnknown, KeyError):
            raise EtcdUnavailable(f"{gateway.address} did not answer whether the user is known") from None
        except Rejected as error:
            if NO_USERS not in error.message:
                raise

    def _close_idle(self, member: Address) -> None:
        idle = self._idle[member]
        while idle:
            idle.pop().close()


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def _range_of(prefix: str) -> dict[str, str]:
    """The keys that begin with a prefix: up to the one that its last byte, raised by one, makes."""
    raw = prefix.encode()
    end = raw[:-1] + bytes([raw[-1] + 1])
    return {"key": b64encode(raw).decode(), "range_end": b64encode(end).decode()}


def _entry(fields: Mapping[str, Any]) -> Entry:
    return Entry(
        b64decode(fields["key"]).decode(),
        b64decode(fields.get("value", "")),
        int(fields["mod_revision"]),
        int(fields.get("lease", 0)),
    )


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _view(answer: Mapping[str, Any]) -> View:
    return View(_revision(answer), {entry.key: entry for entry in map(_entry, answer.get("kvs", ()))})


def _outcome(answer: Mapping[str, Any]) -> Outcome:
    if answer.get("succeeded"):
        return Swapped(_revision(answer))
    found = answer["responses"][0]["response_range"].get("kvs", ())
    return Refused(_entry(found[0]) if found else None)
