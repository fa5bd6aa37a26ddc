"""The settings of the Kafka door."""

from __future__ import annotations

from typing import Any

from headrace.addresses import parse_address
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting


def _check_advertised(text: str) -> None:
    if text == "off":
        raise ConfigError("`off` is no address that clients could connect to; `--kafka off` closes the door")
    if text:
        parse_address(text)


class KafkaSettings(Settings):
    """What the Kafka door is given."""

    kafka: str = setting(
        "127.0.0.1:9092", "HOST:PORT of the Kafka door; port 0 picks one, `off` closes the door.", address=True
    )
    kafka_advertised: str = setting(
        "",
        "HOST:PORT that Kafka clients connect to; by default the door's own, or the address they came by.",
        parse=_check_advertised,
        metavar=HOST_PORT,
    )
    request_max_bytes: int = setting(
        104_857_600, "The largest request that is read; a larger one closes its connection.", least=1024
    )
    array_max: int = setting(200_000, "The most elements that a request may announce in all its arrays.", least=1)
    fetch_max_bytes: int = setting(57_671_680, "The most bytes of records in one fetch reply.", least=1)
    fetch_sessions_max: int = setting(1_000, "Incremental fetch sessions kept at once.")
    quota_produce_bytes: int = setting(0, "Bytes a second that one client id may produce; 0: no limit.")
    quota_fetch_bytes: int = setting(0, "Bytes a second that one client id may fetch; 0: no limit.")


REMEDY = "Give tls_cert and tls_key to have Kafka clients speak TLS."


def guarded(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, those that may be reached from other machines."""
    return ("kafka",) if config.tls_cert else ()
