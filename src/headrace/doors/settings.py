"""The settings that are the same for all doors."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.settings import Settings, setting


class SharedSettings(Settings):
    """What every door is given beside its own."""

    TITLE = "All doors: TLS, authentication, limits"

    tls_cert: str = setting(
        "",
        "A PEM file with the certificate chain: the Kafka and RocketMQ doors then speak TLS only, the NSQ door to "
        "clients that ask.",
        metavar="FILE",
    )
    tls_key: str = setting("", "A PEM file with the certificate's private key.", metavar="FILE")
    tls_client_ca: str = setting(
        "", "A PEM file with the authorities whose client certificates are required.", metavar="FILE"
    )
    tls_reload_ms: int = setting(
        10_000,
        "How often the certificate files are checked; changed files are read again. 0: on SIGHUP alone.",
    )
    sasl_plain_without_tls: bool = setting(
        False,
        "Accept passwords and tokens in the clear (SASL PLAIN; HTTP and NSQ from other machines) without TLS. Only"
        " where the network between clients and broker is trusted.",
    )
    http_authentication: str = setting(
        "optional",
        "Whether clients of the HTTP doors must authenticate. optional: those that do not are ANONYMOUS, and may "
        "do what rules allow ANONYMOUS.",
        choices=("optional", "required"),
    )
    insecure: bool = setting(
        False,
        "Let doors, and the listener for other nodes, open beyond this machine with neither TLS nor "
        "authentication. Only where the network around them is trusted.",
    )
    connections_max: int = setting(
        12_000,
        "Connections that a door holds at once; more are closed on arrival. So are those, of all doors together, "
        "that would take file descriptors from the log.",
        least=1,
    )
    receiving_max_bytes: int = setting(
        536_870_912,
        "Memory for large requests that are being received, of all doors but the HTTP ones. Above it requests wait"
        " unread, except the one that began first.",
        least=1_048_576,
    )
    unread_max_bytes: int = setting(
        268_435_456,
        "Bytes of replies that the clients of all doors have not read yet. Above it the clients that have waited "
        "the longest are disconnected.",
        least=1_048_576,
    )
    http_answer_max_bytes: int = setting(
        33_554_432, "The largest answer of an HTTP door; a larger one is refused.", least=65_536
    )
    http_request_ms: int = setting(
        30_000,
        "How long a client of an HTTP door may take to send a request, or to read an answer, before its connection"
        " is closed; large bodies may take longer.",
        least=1,
    )
    connections_idle_ms: int = setting(600_000, "A connection without a request for this long is closed.", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key go together: give both, or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key: without them no door speaks TLS")
