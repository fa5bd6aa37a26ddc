"""The settings of the NSQ door: of nsqd and of nsqlookupd."""

from __future__ import annotations

from typing import Any

from headrace.addresses import parse_addresses
from headrace.errors import ConfigError
from headrace.settings import HOST_PORT, Settings, setting


class NsqSettings(Settings):
    """What the NSQ door is given."""

    TITLE = "NSQ"

    nsq: str = setting("127.0.0.1:4150", "HOST:PORT of the NSQ door (TCP), or `off`.", address=True)
    nsq_http: str = setting("127.0.0.1:4151", "HOST:PORT of the NSQ door's HTTP side, or `off`.", address=True)
    nsq_https: str = setting(
        "127.0.0.1:4152",
        "HOST:PORT of the same over TLS, or `off`; closed where no certificate is given, or where `nsq` and `nsq_http` "
        "are off and this is not set.",
        address=True,
    )
    nsq_broadcast: str = setting(
        "",
        "The host that the broker announces to NSQ's clients and look-up services; by default the NSQ door's, or the "
        "machine's name if it listens on every interface.",
        metavar="HOST",
    )
    nsq_broadcast_tcp_port: int = setting(0, "The NSQ door's port that the broker announces; 0: its own.", most=65_535)
    nsq_broadcast_http_port: int = setting(0, "Likewise, the port of its HTTP side.", most=65_535)
    lookup: str = setting(
        "127.0.0.1:4160", "HOST:PORT where the look-up door takes registrations, or `off`.", address=True
    )
    lookup_http: str = setting(
        "127.0.0.1:4161", "HOST:PORT where the look-up door answers over HTTP, or `off`.", address=True
    )
    lookup_inactive_ms: int = setting(
        300_000, "A registered producer that is silent for this long is no longer listed.", least=1
    )
    lookup_tombstone_ms: int = setting(45_000, "How long a tombstone hides a topic's producer.")
    lookup_registrations_max: int = setting(
        100_000, "Topics and channels that the look-up door keeps, each counted once and once more for each producer."
    )
    lookupd_tcp: str = setting(
        "",
        "HOST:PORT of other look-up services (nsqlookupd) to register with, several separated by commas.",
        parse=parse_addresses,
        metavar=HOST_PORT,
    )
    lookupd_tcp_settable: bool = setting(
        False,
        "Let `PUT /config/nsqlookupd_tcp_addresses` change `lookupd_tcp` while the broker runs: any client of the "
        "NSQ door's HTTP side can then have the broker connect anywhere.",
    )
    lookupd_timeout_ms: int = setting(
        1_000,
        "How long such a service may take to answer; a new topic waits as long for the channels it knows.",
        least=1,
    )
    nsq_max_msg_size: int = setting(
        1_048_576, "The largest message that NSQ clients may publish.", least=1, most=(1 << 30) - 1
    )
    nsq_max_body_size: int = setting(
        5_242_880, "The largest body of one NSQ command, as of a MPUB.", least=1, most=(1 << 31) - 1
    )
    nsq_max_rdy_count: int = setting(2_500, "The most messages that an NSQ client may have in flight (RDY).", least=1)
    nsq_max_msg_timeout_ms: int = setting(
        900_000, "The longest message timeout that an NSQ client may ask for.", least=1_000
    )
    nsq_max_req_timeout_ms: int = setting(
        3_600_000, "The longest delay of a DPUB; a longer one of a REQ is cut to it.", least=1
    )
    nsq_max_heartbeat_interval_ms: int = setting(
        60_000, "The longest time between heartbeats that an NSQ client may ask for.", least=1_000
    )
    nsq_max_output_buffer_size: int = setting(
        65_536, "The largest output buffer that an NSQ client may ask for.", least=64
    )
    nsq_max_output_buffer_timeout_ms: int = setting(
        30_000, "The longest wait in an output buffer that an NSQ client may ask for.", least=25
    )
    nsq_max_deflate_level: int = setting(6, "The highest deflate level that an NSQ client gets.", least=1, most=9)
    nsq_max_channel_consumers: int = setting(0, "NSQ clients that may subscribe to one channel; 0: no limit.")
    nsq_tls_required: bool = setting(
        False, "NSQ clients must ask for TLS before anything else; client certificates (tls_client_ca) imply it."
    )
    nsq_auth_required: bool = setting(
        False,
        "NSQ clients must authenticate (AUTH, or a certificate) before they publish or subscribe. The secret is an"
        " API token, or USER:PASSWORD.",
    )
    auth_http: str = setting(
        "",
        "HOST:PORT or URL of the server that decides what NSQ clients may do; several with commas between. A user "
        "and password in it are sent as Basic authentication, and never shown.",
        metavar=HOST_PORT,
        secret=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lookupd_tcp and "off" in (self.nsq, self.nsq_http):
            raise ConfigError("lookupd_tcp needs the doors nsq and nsq_http: the broker registers both addresses")
        if self.nsq_max_msg_size > self.nsq_max_body_size:
            raise ConfigError(
                f"nsq_max_msg_size ({self.nsq_max_msg_size}) is above nsq_max_body_size ({self.nsq_max_body_size})"
            )


def closed(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, that of a listener that is not open: the one over TLS, without a
    certificate, and where NSQ was closed otherwise."""
    by_itself = config.nsq_https != NsqSettings.nsq_https or (config.nsq, config.nsq_http) != ("off", "off")
    return () if config.tls_cert and by_itself else ("nsq_https",)


REMEDY = "Give tls_cert, tls_key and nsq_tls_required to have NSQ clients speak TLS."


def guarded(config: Any) -> tuple[str, ...]:
    """Of the addresses in a server's settings, those that may be reached from other machines. TLS that clients may
    leave out guards nothing."""
    is_required = bool(config.tls_cert) and (config.nsq_tls_required or bool(config.tls_client_ca))
    # What is asked in the clear is then refused.
    tls = ("nsq", "nsq_http", "nsq_https") if is_required else ("nsq_https",)
    return (*tls, "nsq") if config.auth_http else tls
