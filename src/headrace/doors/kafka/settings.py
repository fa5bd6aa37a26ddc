"""The settings of the Kafka door, and its listeners.

A listener is where the door listens, how clients speak there, how they show who they are, and where they are sent.
There is the one of `kafka`, and those of `kafka_listeners`. Each client is sent to the address that is advertised for
the listener by which it came, also for the other nodes of a group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from headrace.addresses import parse_address
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting

AUTO = "auto"

MAIN = "kafka"
"""The name of the listener that is always there, unless it is `off`."""
FORM = "NAME=PROTOCOL://HOST:PORT"
_FORM = re.compile(r"([a-z0-9][a-z0-9-]*)=([A-Z_]+)://([^?]*)(?:\?(.*))?")

SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (*SCRAM, PLAIN, OAUTHBEARER)


class Protocol(StrEnum):
    """How clients speak, by Kafka's name."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        """Whether clients speak TLS."""
        return self in (Protocol.SSL, Protocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)


class Listener(NamedTuple):
    """One listener, as it is configured."""

    name: str
    """As addresses have it: `kafka`, or `kafka-` and the name that it is given."""
    protocol: Protocol
    address: str
    """HOST:PORT, or `off`."""
    mechanisms: tuple[str, ...] = ()
    advertised: str = ""
    """HOST:PORT; empty: its own address, or the one by which the client came."""

    @property
    def is_guarded(self) -> bool:
        """Whether it may be open to other machines: over TLS, or where clients authenticate without sending a secret
        that could be read on the way."""
        return self.protocol.is_encrypted or (self.protocol.has_sasl and set(self.mechanisms) <= set(SCRAM))

    def check(self, *, has_certificate: bool, plain_without_tls: bool) -> None:
        """Raise ConfigError where it could not serve as it is configured."""
        if self.protocol.is_encrypted and not has_certificate:
            raise ConfigError(f"the listener {self.name} speaks {self.protocol}: give tls_cert and tls_key")
        if PLAIN in self.mechanisms and not self.protocol.is_encrypted and not plain_without_tls:
            raise ConfigError(
                f"the listener {self.name} would take passwords in the clear (PLAIN over {self.protocol}). Use "
                "SASL_SSL or SCRAM, or set sasl_plain_without_tls"
            )


def parse_mechanisms(text: str, separator: str = ",") -> tuple[str, ...]:
    """The mechanisms of a list. Raises ConfigError."""
    names = tuple(dict.fromkeys(filter(None, (part.strip().upper() for part in text.split(separator)))))
    for name in names:
        if name not in MECHANISMS:
            raise ConfigError(f"{name!r} is not a supported SASL mechanism. Use one of {', '.join(MECHANISMS)}.")
    return names


def mechanisms_of(protocol: Protocol, given: Sequence[str]) -> tuple[str, ...]:
    """Those that a listener offers; without any that are given, those that its protocol keeps secrets safe with. Raises
    ConfigError."""
    if not protocol.has_sasl:
        if given:
            raise ConfigError(f"mechanisms are for SASL, and a listener of {protocol} has none")
        return ()
    return tuple(given) or (MECHANISMS if protocol.is_encrypted else SCRAM)


def parse_listeners(text: str) -> list[Listener]:
    """Those of `kafka_listeners`. Raises ConfigError."""
    found = [_parse(each) for each in filter(None, (part.strip() for part in text.split(",")))]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"the listener {name} occurs more than once")
    return found


def _parse(text: str) -> Listener:
    matched = _FORM.fullmatch(text)
    if matched is None:
        raise ConfigError(
            f"{text!r} is not {FORM}, with ?mechanisms=A+B&advertised=HOST:PORT behind it where it needs them"
        )
    name, kind, address, rest = matched.groups()
    if kind not in Protocol.__members__:
        raise ConfigError(f"{text!r}: {kind!r} is not a listener's protocol. Use one of {', '.join(Protocol)}.")
    protocol = Protocol(kind)
    check_address(address)
    options: dict[str, str] = {}
    for option in filter(None, (rest or "").split("&")):
        key, _, value = option.partition("=")
        if key not in ("mechanisms", "advertised") or key in options:
            raise ConfigError(f"{text!r}: {option!r} is not an option. Use mechanisms and advertised, each once.")
        options[key] = value
    advertised = options.get("advertised", "")
    if advertised:
        check_address(advertised)
    given = parse_mechanisms(options.get("mechanisms", ""), "+")
    return Listener(f"{MAIN}-{name}", protocol, address, mechanisms_of(protocol, given), advertised)


def check_advertised(text: str) -> None:
    """Raise ConfigError for what is neither empty nor an address that clients could connect to."""
    if text:
        check_address(text)


def check_address(text: str) -> None:
    """Raise ConfigError for what is no address to listen on, or to connect to."""
    if text == "off":
        raise ConfigError("`off` is not an address that clients can connect to. Use `--kafka off` to close the door.")
    parse_address(text)


class KafkaSettings(Settings):
    """What the Kafka door is given."""

    TITLE = "Kafka"

    kafka: str = setting(
        "127.0.0.1:9092", "HOST:PORT of the Kafka door; port 0 picks one, `off` closes the door.", address=True
    )
    kafka_advertised: str = setting(
        "",
        "HOST:PORT that Kafka clients connect to; by default the door's own, or the address that they came by.",
        parse=check_advertised,
        metavar=HOST_PORT,
    )
    kafka_protocol: str = setting(
        AUTO,
        "How clients speak at `kafka`. auto: over TLS where there is a certificate, with SASL where `kafka_mechanisms` "
        "are given.",
        choices=(AUTO, *Protocol),
    )
    kafka_mechanisms: str = setting(
        "",
        "The SASL mechanisms at `kafka`, with commas between: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN, OAUTHBEARER. By "
        "default all over TLS, and without it those of SCRAM.",
        parse=parse_mechanisms,
        metavar="NAMES",
    )
    kafka_listeners: str = setting(
        "",
        f"Further listeners of the Kafka door, with commas between, each as {FORM}, and behind it, where they are "
        "needed, `?mechanisms=A+B&advertised=HOST:PORT`.",
        parse=parse_listeners,
        metavar="LISTENERS",
    )
    request_max_bytes: int = setting(
        104_857_600, "The largest request that is read; a larger one closes its connection.", least=1024
    )
    sasl_max_bytes: int = setting(
        65_536, "The largest request that is read from a client that is not authenticated yet.", least=1024
    )
    sasl_timeout_ms: int = setting(30_000, "How long a client may take to authenticate.", least=1)
    sasl_session_ms: int = setting(
        0,
        "How long a SASL authentication is valid: clients authenticate again before it ends, or are disconnected; "
        "0: as long as the token.",
    )
    array_max: int = setting(200_000, "The most elements that a request may announce in all its arrays.", least=1)
    fetch_max_bytes: int = setting(57_671_680, "The most bytes of records in one fetch reply.", least=1)
    fetch_sessions_max: int = setting(1_000, "Incremental fetch sessions kept at once.")


REMEDY = "Give tls_cert and tls_key to have Kafka clients speak TLS, or kafka_mechanisms to have them authenticate."


def listeners_of(settings: Any, *, has_certificate: bool) -> list[Listener]:
    """Those of the door's settings, that of `kafka` first. Raises ConfigError."""
    given = parse_mechanisms(settings.kafka_mechanisms)
    if settings.kafka_protocol != AUTO:
        protocol = Protocol(settings.kafka_protocol)
    elif has_certificate:
        protocol = Protocol.SASL_SSL if given else Protocol.SSL
    else:
        protocol = Protocol.SASL_PLAINTEXT if given else Protocol.PLAINTEXT
    main = Listener(MAIN, protocol, settings.kafka, mechanisms_of(protocol, given), settings.kafka_advertised)
    return [main, *parse_listeners(settings.kafka_listeners)]


def more(config: Any) -> dict[str, str]:
    """The addresses of the listeners beside `kafka`, by their names."""
    return {each.name: each.address for each in parse_listeners(config.kafka_listeners)}


def guarded(config: Any) -> tuple[str, ...]:
    """Of the listeners in a server's settings, those that may be reached from other machines."""
    listeners = listeners_of(config, has_certificate=bool(config.tls_cert))
    return tuple(each.name for each in listeners if each.is_guarded)
