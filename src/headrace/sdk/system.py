"""Which system a URL names, what it can do, and the transports to it.

headrace://HOST:9092?nsq=HOST:4150     both wires of a Headrace; its HTTP door by ?http=, or as the broker gives it
kafka://HOST:9092,HOST:9092            an Apache Kafka cluster
nsq://HOST:4150                        an nsqd; with ?lookup=HOST:4161,... readers find all that have a topic
memory://NAME?partitions=4             a system inside this process, for tests

tls=1, tls_ca=FILE, tls_cert=FILE and tls_key=FILE turn TLS on, for all but the last. USER@ before the first host with
password_file=FILE, or token_file=FILE, says as whom the application comes (`login`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.client import AuthenticationError, Client
from headrace.client.tls import client_context
from headrace.errors import ConfigError
from headrace.format.delay import MAX_DELAY_MS
from headrace.sdk.login import OPTIONS as LOGIN_OPTIONS
from headrace.sdk.login import Login, parse_login
from headrace.sdk.message import Outgoing
from headrace.sdk.scenario import KAFKA, NSQ, Scenario, Tuning
from headrace.sdk.tls import OPTIONS as TLS_OPTIONS
from headrace.sdk.tls import Tls, parse_tls
from headrace.sdk.transport import Transport, UnsupportedPublish

HEADRACE, MEMORY = "headrace", "memory"
BOTH_WIRES = (HEADRACE, MEMORY)
KAFKA_PORT, NSQ_PORT, HTTP_PORT, LOOKUP_PORT = 9092, 4150, 9080, 4161
# In the place of an address: that door is closed.
OFF = "off"
# What may stand behind the question mark, by scheme.
OPTIONS = {
    HEADRACE: {"nsq", "http", *TLS_OPTIONS, *LOGIN_OPTIONS},
    KAFKA: {*TLS_OPTIONS, *LOGIN_OPTIONS},
    NSQ: {"envelope", "lookup", *TLS_OPTIONS, *LOGIN_OPTIONS},
    MEMORY: {"partitions"},
}


class Unsuited(Exception):
    """The system lacks what a subscription needs."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, taken apart."""

    kind: str
    kafka: str = ""
    nsq: str = ""
    """Empty where the URL does not give it, `off` where there is none."""
    http: str = ""
    """The same; where it is empty, the broker gives it over NSQ's wire."""
    envelope: bool = False
    """On a plain nsqd: key and headers travel in an envelope of the framework's own."""
    lookup: tuple[str, ...] = ()
    """Where readers ask which nsqds have a topic; what is sent goes to the one that the URL names."""
    tls: Tls | None = None
    login: Login | None = None
    memory: str = ""
    partitions: int = 1
    """Of topics that are made in memory."""


def parse(url: str) -> Address:
    """Raises ValueError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    user, _, hosts = parts.netloc.rpartition("@")
    # First of all: other errors show the URL.
    login = parse_login(parts.scheme, unquote(user), options)
    known = OPTIONS.get(parts.scheme)
    if known is None:
        raise ValueError(f"{url!r}: a URL begins with headrace://, kafka://, nsq:// or memory://")
    if unknown := sorted(set(options) - known):
        raise ValueError(f"{url!r}: {parts.scheme}:// has no option {', '.join(unknown)}")
    if parts.scheme == MEMORY:
        return Address(MEMORY, memory=hosts, partitions=_count(url, options.get("partitions", "1")))
    if not hosts:
        raise ValueError(f"{url!r} names no host")
    tls = parse_tls(url, options)
    if parts.scheme == KAFKA:
        kafka = ",".join(_with_port(each, KAFKA_PORT) for each in hosts.split(","))
        return Address(KAFKA, kafka=kafka, tls=tls, login=login)
    if parts.scheme == NSQ:
        lookup = tuple(_with_port(each, LOOKUP_PORT) for each in options.get("lookup", "").split(",") if each)
        envelope = options.get("envelope") == "1"
        return Address(NSQ, nsq=_with_port(hosts, NSQ_PORT), envelope=envelope, lookup=lookup, tls=tls, login=login)
    kafka = _with_port(hosts, KAFKA_PORT)
    host, _, port = kafka.rpartition(":")
    # A broker whose Kafka door is elsewhere has its other doors elsewhere too: what is at NSQ's port is another broker.
    usual = host if port == str(KAFKA_PORT) else ""
    return Address(
        HEADRACE,
        kafka=kafka,
        nsq=_door(options.get("nsq") or usual, NSQ_PORT),
        http=_door(options.get("http", ""), HTTP_PORT),
        tls=tls,
        login=login,
    )


def context_of(address: Address) -> ssl.SSLContext | None:
    """The TLS of an address. Raises Unsuited where its files cannot be used."""
    if address.tls is None:
        return None
    try:
        return client_context(address.tls.ca, address.tls.cert, address.tls.key)
    except ConfigError as error:
        raise Unsuited(str(error)) from None


def client_of(address: Address, client_id: str) -> Client:
    """A client of its Kafka door. Raises Unsuited where a file cannot be used."""
    try:
        credentials = address.login.credentials() if address.login is not None else None
    except AuthenticationError as error:
        raise Unsuited(str(error)) from None
    return Client(address.kafka, tls=context_of(address), credentials=credentials, client_id=client_id)


def _count(url: str, partitions: str) -> int:
    if not partitions.isdecimal() or int(partitions) < 1:
        raise ValueError(f"{url!r}: a topic cannot have {partitions} partitions: give 1 or more")
    return int(partitions)


def _door(given: str, port: int) -> str:
    return given if given in ("", OFF) or "://" in given else _with_port(given, port)


def _with_port(host: str, port: int) -> str:
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


class System:
    """One messaging system, and the transports that are open to it."""

    def __init__(self, url: str, client_id: str) -> None:
        self.url = url
        self.address = parse(url)
        self._client_id = client_id
        self._open: dict[str, Transport] = {}
        # Callers that come together wait for the first, and try themselves if it fails.
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def wire_for(self, scenario: Scenario, tuning: Tuning) -> str:
        """The wire by which the system serves a scenario, with the values of a subscription. Raises Unsuited."""
        kind = self.address.kind
        if kind in BOTH_WIRES:
            wire = KAFKA if tuning.exactly_once or tuning.partitions else scenario.wire
            if wire == NSQ and (missing := self.nsq_missing()):
                raise Unsuited(f"the scenario {scenario.name!r} needs the NSQ door: {missing}")
            return wire
        lacking = (
            ("no transactions", tuning.exactly_once),
            ("no partitions", bool(tuning.partitions)),
            ("no order by key", tuning.ordered),
            ("no log to read again", scenario.wire == KAFKA),
        )
        if kind == NSQ and (lacks := next((what for what, needed in lacking if needed), "")):
            raise Unsuited(f"the scenario {scenario.name!r} cannot be served by {self.url}: NSQ has {lacks}")
        return kind

    def check(self, message: Outgoing) -> None:
        """Raises UnsupportedPublish for what no transport here can carry: before it is buffered, because the messages
        that are sent with it are not to blame."""
        kind = self.address.kind
        if message.delay and kind == KAFKA:
            raise UnsupportedPublish(f"{message.topic}: Kafka has no delayed messages. Use a Headrace, or an NSQ")
        if message.delay and (missing := self.nsq_missing()):
            raise UnsupportedPublish(f"{message.topic}: a delayed message needs the NSQ door: {missing}")
        if kind == HEADRACE and message.delay * 1_000 > MAX_DELAY_MS:
            raise UnsupportedPublish(f"{message.topic}: a delay is 25 years at most (got {message.delay} s)")
        if message.partition is not None and (message.delay or kind == NSQ):
            what = "a delayed message" if message.delay else "NSQ's wire"
            raise UnsupportedPublish(f"{message.topic}: {what} cannot choose the partition {message.partition}")

    def nsq_missing(self) -> str:
        """Why the NSQ door of a Headrace cannot be reached; empty where it can."""
        if self.address.kind != HEADRACE or self.address.nsq not in ("", OFF):
            return ""
        why = "turns it off" if self.address.nsq else "does not give its address"
        return f"{self.url} {why}. Add nsq=HOST:PORT behind the question mark"

    async def transport(self, wire: str) -> Transport:
        """The transport of a wire, opened now if it was not."""
        if wire not in self._open:
            async with self._opening[wire]:
                if wire not in self._open:
                    transport = self._make(wire)
                    await transport.open()
                    self._open[wire] = transport
        return self._open[wire]

    def _make(self, wire: str) -> Transport:
        # Each imports a client library, which applications that use the other need not have.
        if self.address.kind == MEMORY:
            from headrace.sdk.memory import MemoryTransport

            return MemoryTransport(self.address, self._client_id, wire)
        if wire == KAFKA:
            from headrace.sdk.kafka import KafkaTransport

            return KafkaTransport(self.address, self._client_id)
        from headrace.sdk.nsq import NsqTransport

        return NsqTransport(self.address, self._client_id)

    async def close(self) -> None:
        """Close every transport."""
        for opening in list(self._opening.values()):
            async with opening:
                pass
        while self._open:
            _, transport = self._open.popitem()
            await transport.close()
