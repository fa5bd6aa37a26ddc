"""The broker's configuration: one typed place for everything that can be set.

Each field is a flag of `headrace serve`, a key of the TOML file and an environment variable (`HEADRACE_` and the name
in capitals). The field's metadata carries the sentence that `--help` and `docs/configuration.md` print, and the values
that fit. `resolve` merges the sources, the nearest to the command line winning; an error names the source at fault.
Topics have settings of their own (`headrace.broker.topic_config`); those here named `log_*` and `num_partitions` are
their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from headrace.errors import ConfigError
from headrace.redaction import HIDDEN
from headrace.targets import local_path

ENVIRONMENT_PREFIX = "HEADRACE_"
# The largest whole number that the log's formats and Kafka's protocol can carry.
INT64_MAX = (1 << 63) - 1


def setting(
    default: Any,
    help: str,
    *,
    least: int | None = None,
    most: int = INT64_MAX,
    choices: tuple[str, ...] = (),
    address: bool = False,
    secret: bool = False,
) -> Any:
    """A field with the sentence that explains it and the values that make sense for it; numbers are at least 0 (or the
    default, if that is lower) where nothing else is said. A secret is shown nowhere."""
    if least is None and isinstance(default, int):
        least = min(0, default)
    return field(
        default=default,
        repr=not secret,
        metadata={"help": help, "least": least, "most": most, "choices": choices, "address": address, "secret": secret},
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one broker."""

    data: str = setting("./data", "The data directory; made if it is missing.")
    node_id: int = setting(0, "This broker's number, as Kafka clients see it.", most=(1 << 31) - 1)
    durability: str = setting(
        "sync",
        "What an acknowledgement promises on topics without a setting of their own: sync, async or memory.",
        choices=("sync", "async", "memory"),
    )

    kafka: str = setting(
        "127.0.0.1:9092", "HOST:PORT of the Kafka door; port 0 picks one, `off` closes the door.", address=True
    )
    kafka_advertised: str = setting(
        "", "HOST:PORT that Kafka clients connect to; by default the door's own, or the address they came by."
    )
    http: str = setting(
        "127.0.0.1:9080", "HOST:PORT of the HTTP door (management, metrics, health), or `off`.", address=True
    )
    http_hosts: str = setting(
        "",
        "More names by which HTTP clients may call the broker's HTTP doors, several separated by commas; `*.NAME`: all "
        "below that name, `*`: any.",
    )
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
        "", "HOST:PORT of other look-up services (nsqlookupd) to register with, several separated by commas."
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
    tls_cert: str = setting(
        "", "A PEM file with the certificate chain: the Kafka door then speaks TLS only, the NSQ door to those who ask."
    )
    tls_key: str = setting("", "A PEM file with the certificate's private key.")
    tls_client_ca: str = setting("", "A PEM file with the authorities whose client certificates are required.")

    # Limits of a connection and a request.
    request_max_bytes: int = setting(
        104_857_600, "The largest request that is read; a larger one closes its connection.", least=1024
    )
    connections_max: int = setting(
        12_000,
        "Connections a door holds at once; more are closed as they come, and so are those of all doors together that "
        "would take descriptors from the log.",
        least=1,
    )
    unread_max_bytes: int = setting(
        268_435_456,
        "Bytes of replies that the clients of all doors have not read yet; beyond it those that have waited the "
        "longest are cut off.",
        least=1_048_576,
    )
    http_answer_max_bytes: int = setting(
        33_554_432, "The largest answer of an HTTP door; one that would be larger is refused.", least=65_536
    )
    connections_idle_ms: int = setting(600_000, "A connection without a request for this long is closed.", least=1)
    array_max: int = setting(200_000, "The most elements that a request may announce in all its arrays.", least=1)
    fetch_max_bytes: int = setting(57_671_680, "The most bytes of records in one fetch reply.", least=1)
    fetch_sessions_max: int = setting(1_000, "Incremental fetch sessions kept at once.")
    decompressed_max_bytes: int = setting(
        134_217_728, "The most bytes that one batch may unpack to where the broker reads records.", least=1
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
        3_600_000, "The longest delay of a DPUB; that of a REQ is cut to it.", least=1
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
    auth_http: str = setting(
        "",
        "HOST:PORT or URL of the server that says what NSQ clients may do; several with commas between. A user and "
        "password in it are sent as Basic authentication, and shown nowhere.",
        secret=True,
    )
    quota_produce_bytes: int = setting(0, "Bytes a second that one client id may produce; 0: no limit.")
    quota_fetch_bytes: int = setting(0, "Bytes a second that one client id may fetch; 0: no limit.")

    # Topics.
    auto_create_topics: bool = setting(True, "Make a topic when a client first names it.")
    num_partitions: int = setting(1, "Partitions of a topic created without a number.", least=1)
    partitions_max: int = setting(10_000, "The most partitions of one topic.", least=1)
    partitions_per_request_max: int = setting(
        10_000, "The most partitions that one CreateTopics or CreatePartitions may ask for in all.", least=1
    )
    partitions_total_max: int = setting(100_000, "The most partitions of all topics.", least=1)

    # The log.
    journal_bytes: int = setting(33_554_432, "Size of one journal file.", least=4096)
    tail_bytes: int = setting(
        67_108_864,
        "Memory for the newest batches of all partitions: tail reads, and what waits for its segment.",
        least=1,
    )
    direct_bytes: int = setting(
        131_072, "A `sync` batch of at least this size goes straight to its segment, not through the journal.", least=1
    )
    open_files_max: int = setting(
        16_000, "Segment descriptors kept open at once; never more than half of what the process may open.", least=1
    )
    checkpoint_ms: int = setting(30_000, "How often recovery points move up while there is traffic.", least=1)
    retention_warning_ms: int = setting(
        3_600_000, "How long before retention takes what a group or queue has not read the broker warns of it."
    )
    retention_check_ms: int = setting(300_000, "How often retention looks for segments to drop.", least=1)
    compaction_check_ms: int = setting(15_000, "How often compaction looks for partitions that are worth it.", least=1)
    log_segment_bytes: int = setting(1 << 30, "A segment rolls at this size.", least=1)
    log_segment_ms: int = setting(604_800_000, "A segment rolls at this age.", least=1)
    log_retention_ms: int = setting(604_800_000, "Records are kept this long; -1: for ever.", least=-1)
    log_retention_bytes: int = setting(-1, "Bytes kept of each partition; -1: no limit.", least=-1)
    message_max_bytes: int = setting(1_048_588, "The largest batch that is accepted.", least=1)
    producer_id_expiration_ms: int = setting(
        86_400_000, "An idempotent producer is forgotten after this long without a batch.", least=1
    )

    # Deduplication.
    deduplication_window_ms: int = setting(
        600_000,
        "The window that a topic gets with its first message with a deduplication id over HTTP or NSQ; 0: none does.",
        most=604_800_000,
    )
    deduplication_max_ids: int = setting(
        1_000_000,
        "Deduplication ids that are remembered in all, about 60 bytes each; beyond it the oldest are forgotten early.",
        least=1,
    )

    # Too fast a producer, and what is consumed.
    overflow_held_bytes: int = setting(
        67_108_864,
        "Bytes of requests that wait on topics with `overflow=block` in all; more are refused at once, to be retried.",
        least=1,
    )
    consumed_check_ms: int = setting(1_000, "How often `retention=consumed` looks for what can go.", least=1)
    consumed_free_bytes: int = setting(
        1_048_576, "Settled records of a partition go once that frees this much.", least=1
    )
    consumed_quiet_ms: int = setting(60_000, "They go, however few, once nothing more was settled for this long.")

    # Groups.
    group_min_session_timeout_ms: int = setting(
        6_000, "The shortest session timeout that a group member may ask for.", least=1
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a group member may ask for.", least=1
    )
    group_initial_rebalance_delay_ms: int = setting(
        0, "How long the first rebalance of an empty group waits for more members."
    )
    group_consumer_session_timeout_ms: int = setting(
        45_000, "Silence after which a member of the consumer protocol is removed.", least=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, "How often a member of the consumer protocol sends a heartbeat.", least=1
    )
    group_max_size: int = setting(10_000, "Members of one group.", least=1)
    transactions_partitions: int = setting(50, "Partitions of __transaction_state when it is made.", least=1)
    transaction_max_timeout_ms: int = setting(900_000, "The longest timeout that a transaction may ask for.", least=1)
    transactional_id_expiration_ms: int = setting(
        604_800_000, "A transactional id is forgotten after this long without a transaction.", least=1
    )
    transactional_id_unused_expiration_ms: int = setting(
        900_000, "A transactional id that never had a transaction is forgotten after this long.", least=1
    )
    transactional_ids_unused_max: int = setting(
        2_000,
        "Transactional ids without a transaction that one client address may have; one more discards its oldest.",
        least=1,
    )
    transactional_ids_max: int = setting(100_000, "Transactional ids that are known at a time.", least=1)
    offsets_partitions: int = setting(50, "Partitions of __consumer_offsets when it is made.", least=1)
    offsets_retention_ms: int = setting(604_800_000, "Offsets of an empty group are kept this long.", least=1)
    offset_metadata_max_bytes: int = setting(4_096, "The longest metadata string of a committed offset.")

    # Events of queues.
    deliveries_flush_ms: int = setting(200, "How often events of queues are written to __deliveries.", least=1)
    deliveries_runs_max: int = setting(
        20_000,
        "Runs of offsets whose events wait to be written to __deliveries; more are dropped, and counted.",
        least=1,
    )

    # Queues.
    queue_timeout_ms: int = setting(
        60_000,
        "How long a delivery of a new queue may stay unsettled; a queue can override it.",
        least=1,
        most=86_400_000,
    )
    queue_flush_ms: int = setting(
        50, "How far what queues have settled may be behind on disk: what a crash can repeat.", least=1
    )
    queue_partitions_max: int = setting(
        2_000, "The most partitions of a topic that has queues: a queue looks at all of them.", least=1
    )
    queue_state_partitions: int = setting(4, "Partitions of __queues when it is made.", least=1)
    queue_snapshot_bytes: int = setting(
        4_194_304, "Once this much was written to a partition of __queues, a snapshot takes its place.", least=1
    )

    # Half messages.
    half_timeout_ms: int = setting(
        6_000, "A half message undecided for this long is asked about; a message can override it.", least=1
    )
    half_timeout_max_ms: int = setting(86_400_000, "The longest such time that a message may ask for.", least=1)
    half_check_interval_ms: int = setting(30_000, "How often the producer group is asked again.", least=1)
    half_checks_max: int = setting(15, "After this many rounds of check-back a half message is given up.")
    half_give_up: str = setting(
        "rollback",
        "What giving up means: rollback, commit, or park (kept and listed until a client decides).",
        choices=("rollback", "commit", "park"),
    )
    half_max_pending: int = setting(100_000, "Half messages that may be undecided at once; more are refused.", least=1)
    half_decided_max: int = setting(
        10_000, "Decided half messages whose outcome is remembered, for those who decide again."
    )
    half_log_bytes: int = setting(
        67_108_864, "Above this size __half drops outcomes early and moves old undecided messages forward.", least=1
    )

    log_level: str = setting("info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting(
        "auto",
        "console or json; auto: console on a terminal, json elsewhere.",
        choices=("auto", "console", "json"),
    )

    def __post_init__(self) -> None:
        for known in fields(self):
            check(known, getattr(self, known.name), known.name)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls_cert and tls_key go together: give both, or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key: without them no door speaks TLS")
        try:
            host_names(self.http_hosts)
        except ConfigError as error:
            raise ConfigError(f"http_hosts: {error}") from None
        if self.lookupd_tcp:
            try:
                parse_addresses(self.lookupd_tcp)
            except ConfigError as error:
                raise ConfigError(f"lookupd_tcp: {error}") from None
            if "off" in (self.nsq, self.nsq_http):
                raise ConfigError("lookupd_tcp needs the doors nsq and nsq_http: look-up services are told both")
        if self.nsq_tls_required and not self.tls_cert:
            raise ConfigError("nsq_tls_required needs tls_cert and tls_key: without them no client could come in")
        if self.nsq_max_msg_size > self.nsq_max_body_size:
            raise ConfigError(
                f"nsq_max_msg_size ({self.nsq_max_msg_size}) is above nsq_max_body_size ({self.nsq_max_body_size})"
            )
        if self.half_timeout_ms > self.half_timeout_max_ms:
            raise ConfigError(
                f"half_timeout_ms ({self.half_timeout_ms}) is above half_timeout_max_ms ({self.half_timeout_max_ms})"
            )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigError(
                f"group_consumer_heartbeat_interval_ms ({self.group_consumer_heartbeat_interval_ms}) is not below "
                f"group_consumer_session_timeout_ms ({self.group_consumer_session_timeout_ms})"
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group_min_session_timeout_ms ({self.group_min_session_timeout_ms}) is above "
                f"group_max_session_timeout_ms ({self.group_max_session_timeout_ms})"
            )


SETTINGS = tuple(each.name for each in fields(Config))


def resolve(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    file_name: str = "the file",
    settings: type[Config] = Config,
) -> Config:
    """One configuration from its sources: a flag wins over the environment, that over the file, that over the default.

    `flags` is by field name. `environment` is the process's own, of which only the known names are read, because other
    variables may begin with the same prefix. A key of the file that is not known is an error: it is likely a slip.
    """
    known = {each.name: each for each in fields(settings)}
    for key in file:
        if key not in known:
            raise ConfigError(f"{file_name}: {no_setting(key)}")
    values: dict[str, Any] = {}
    for name, each in known.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name in flags:
            said, value = flag_name(name), flags[name]
        elif variable in environment:
            said, value = variable, environment[variable]
        elif name in file:
            said, value = f"{file_name}: {name}", file[name]
        else:
            continue
        values[name] = check(each, convert(each, value, said), said)
        if name == "data" and not value:
            # Such as of a variable that is not set; as a path it would be the current directory.
            raise ConfigError(f"{said}: the empty text names no directory")
        if name == "data":
            values[name] = local_path(value, said)
    return settings(**values)


def no_setting(name: str) -> str:
    """What to say of a name that no field has."""
    return f"there is no setting {name!r}{meant(name, SETTINGS)}; `headrace serve --help` lists them"


def meant(name: str, known: Iterable[str]) -> str:
    """A guess at what a slip was meant to be, to be put behind it."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def flag_name(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def command_line(config: Config) -> list[str]:
    """A command that starts a broker with these settings; those that are secret are hidden."""
    flags = []
    for known in fields(config):
        value = getattr(config, known.name)
        if value != known.default:
            shown = HIDDEN if known.metadata["secret"] else str(value).lower() if known.type == "bool" else str(value)
            flags.append(f"{flag_name(known.name)}={shown}")
    return ["headrace", "serve", *flags]


def convert(known: Field[Any], value: Any, said: str) -> Any:
    """The value as the field's type, from the text of a flag or variable or the typed value of a TOML file."""
    # Annotations are strings in this module.
    if known.type == "str" or not isinstance(value, str):
        return value
    if known.type == "bool":
        lowered = value.lower()
        if lowered in ("true", "yes", "on", "1"):
            return True
        if lowered in ("false", "no", "off", "0"):
            return False
        raise ConfigError(f"{said}: {value!r} is neither true nor false")
    try:
        return int(value.replace("_", ""))
    except ValueError:
        raise ConfigError(f"{said}: {value!r} is not a whole number") from None


def check(known: Field[Any], value: Any, said: str) -> Any:
    """The value itself, if it makes sense for the field. `said` is where it came from, for the error."""
    wanted = {"str": str, "int": int, "bool": bool}[str(known.type)]
    if type(value) is not wanted:
        article = {"str": "text", "int": "a whole number", "bool": "true or false"}[str(known.type)]
        raise ConfigError(f"{said}: {value!r} is not {article}")
    limits = known.metadata
    if wanted is int and not limits["least"] <= value <= limits["most"]:
        bound = f"at least {limits['least']}" if value < limits["least"] else f"at most {limits['most']}"
        raise ConfigError(f"{said}: {value} does not make sense; it must be {bound}")
    if limits["choices"] == ("off",) and value != "off":
        raise ConfigError(f"{said}: this version has no such door yet; leave it out or say `off`, not {value!r}")
    if limits["choices"] and value not in limits["choices"]:
        raise ConfigError(f"{said}: {value!r} is none of {', '.join(limits['choices'])}")
    if limits["address"] or (known.name == "kafka_advertised" and value):
        try:
            parse_address(str(value))
        except ConfigError as error:
            raise ConfigError(f"{said}: {error}") from None
        if value == "off" and known.name == "kafka_advertised":
            raise ConfigError(f"{said}: `off` is no address that clients could be told; `--kafka off` closes the door")
    return value


def parse_address(text: str) -> tuple[str, int] | None:
    """Host and port of HOST:PORT (an IPv6 host in brackets; an empty host: every interface), or None for `off`."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise ConfigError(f"{text!r} is not HOST:PORT with a port of 0 to 65535, nor `off`")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{text!r}: put an IPv6 address in brackets, as in [::1]:9092")
    return host or "0.0.0.0", int(port)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Hosts and ports of a list of HOST:PORT with commas between; the empty text is the empty list."""
    addresses = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        address = parse_address(each)
        if address is None or not address[1]:
            raise ConfigError(f"{each!r} is no HOST:PORT that could be connected to")
        addresses.append(address)
    return addresses


def host_names(text: str) -> list[str]:
    """The names of a list with commas between; each may begin with `*.`, or be `*`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not re.fullmatch(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", name):
            raise ConfigError(f"{name!r} is no name of a host. Give it without scheme and port, as in mq.example.com")
    return names


def format_address(host: str, port: int) -> str:
    """HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def settings_table() -> str:
    """All settings as a Markdown table, for `docs/configuration.md`."""
    rows = ["| setting | default | what it means |", "| --- | --- | --- |"]
    for each in fields(Config):
        default = str(each.default).lower() if isinstance(each.default, bool) else str(each.default)
        rows.append(f"| `{each.name}` | {f'`{default}`' if default else ''} | {each.metadata['help']} |")
    return "\n".join(rows) + "\n"
