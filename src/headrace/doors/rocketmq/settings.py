"""The settings of the RocketMQ door: of its name server and of its broker."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from headrace.addresses import parse_address
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting


def _check_advertised(text: str) -> None:
    if text == "off":
        raise ConfigError("`off` is not an address that clients can connect to. Use `--rocketmq off` to close it.")
    if text:
        parse_address(text)


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """The milliseconds of each level, the first being level 1. Raises ConfigError."""
    levels = []
    for each in text.split():
        number, unit = each[:-1], each[-1:]
        if not (number.isascii() and number.isdecimal() and len(number) < 10 and unit in _UNITS):
            raise ConfigError(f"{each!r} is not a delay: give a number and one of {', '.join(_UNITS)}, as in 10s")
        levels.append(int(number) * _UNITS[unit])
    if not levels:
        raise ConfigError("there must be one delay level at least")
    return tuple(levels)


# What the gRPC protocol needs: a server, and RocketMQ's protos, which come with its Python client.
GRPC_PACKAGES = ("grpc", "google.protobuf", "rocketmq")
# The address of its own accord: where the extra is missing, it is not opened, and that is no error.
GRPC_ADDRESS = "127.0.0.1:8081"


class RocketMqSettings(Settings):
    """What the RocketMQ door is given."""

    TITLE = "RocketMQ"

    rocketmq: str = setting("127.0.0.1:10911", "HOST:PORT of the RocketMQ door, or `off`.", address=True)
    rocketmq_namesrv: str = setting(
        "127.0.0.1:9876", "HOST:PORT where the RocketMQ door answers as a name server, or `off`.", address=True
    )
    rocketmq_grpc: str = setting(
        GRPC_ADDRESS,
        "HOST:PORT where the RocketMQ door answers gRPC clients, or `off`; needs the extra `rocketmq-grpc`.",
        address=True,
    )
    rocketmq_namesrv_registration: bool = setting(
        False,
        "Whether other RocketMQ brokers may register with the name server. Off, because a broker that registers gets "
        "the clients of the topics that it names.",
    )
    rocketmq_namesrv_brokers_max: int = setting(
        100, "The most other brokers, masters and slaves, that may be registered with the name server.", least=1
    )
    rocketmq_namesrv_values_max: int = setting(
        10_000, "The most values of configuration (KV config) that the RocketMQ name server keeps.", least=1
    )
    rocketmq_advertised: str = setting(
        "",
        "HOST:PORT of the RocketMQ door that its name server gives to clients; by default the door's own, or the host "
        "that they came by.",
        parse=_check_advertised,
        metavar=HOST_PORT,
    )
    rocketmq_authentication: str = setting(
        "optional",
        "Whether RocketMQ clients must sign their requests, with an API token that signs: its id is the access key. "
        "optional: those that do not are ANONYMOUS.",
        choices=("optional", "required"),
    )
    rocketmq_broker_name: str = setting("headrace", "The name of this broker among those of a RocketMQ cluster.")
    rocketmq_cluster: str = setting("DefaultCluster", "The name of the broker's RocketMQ cluster.")
    rocketmq_max_message_size: int = setting(
        4_194_304, "The largest body of a message, or of a batch, that RocketMQ clients may send.", least=1
    )
    rocketmq_frame_max_bytes: int = setting(
        16_777_216,
        "The largest frame that RocketMQ clients may send; a larger one closes its connection.",
        least=1_024,
        most=(1 << 31) - 1,
    )
    rocketmq_topic_queues: int = setting(
        8, "The most queues of a topic that the first message of a RocketMQ producer creates.", least=1
    )
    rocketmq_delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "The delays of RocketMQ's delay levels, the first being level 1.",
        parse=parse_levels,
    )
    rocketmq_grpc_calls_max: int = setting(
        10_000, "Requests of RocketMQ's gRPC clients that are under way at once, long polls too.", least=1
    )
    rocketmq_client_expiry_ms: int = setting(
        120_000, "A RocketMQ client without a heartbeat for this long is closed, and leaves its groups.", least=1
    )
    rocketmq_client_requests_max: int = setting(
        100,
        "Requests of administrators that a RocketMQ client is forwarded and has not answered yet, at most.",
        least=1,
    )
    rocketmq_client_timeout_ms: int = setting(
        10_000, "How long a RocketMQ client has to answer what it is forwarded.", least=1
    )
    rocketmq_auto_create_groups: bool = setting(
        True,
        "Any RocketMQ group may consume; off: those that `mqadmin updateSubGroup` has made, as by RocketMQ's "
        "autoCreateSubscriptionGroup.",
    )
    rocketmq_groups_max: int = setting(
        10_000, "The most RocketMQ groups that have settings of their own (`mqadmin updateSubGroup`).", least=1
    )
    rocketmq_server_side_reset: bool = setting(
        True,
        "A reset of offsets counts at once and reaches clients by their next pull; off: clients are sent the offsets, "
        "and commit them.",
    )


def missing_grpc_packages() -> list[str]:
    """What the gRPC side needs and is not installed."""
    try:
        return [name for name in GRPC_PACKAGES if find_spec(name) is None]
    except ModuleNotFoundError as error:
        return [str(error.name)]


def closed(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, that of a listener that is not open: gRPC's, without the extra."""
    return ("rocketmq_grpc",) if config.rocketmq_grpc == GRPC_ADDRESS and missing_grpc_packages() else ()


REMEDY = (
    "Give tls_cert and tls_key to have RocketMQ clients speak TLS, or rocketmq_authentication=required to have them "
    "sign what they ask."
)


def guarded(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, those that may be reached from other machines."""
    is_guarded = config.tls_cert or config.rocketmq_authentication == "required"
    return ("rocketmq", "rocketmq_namesrv", "rocketmq_grpc") if is_guarded else ()
