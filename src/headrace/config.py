"""The broker's configuration: one typed place for everything that can be set.

Each field is a flag of `headrace serve`, a key of the TOML file and an environment variable (`HEADRACE_` and the name in
capitals). The field's metadata carries the sentence that `--help` and `docs/configuration.md` print. Topics have settings of
their own (`headrace.broker.topic_config`); the ones here named `log_*` and `num_partitions` are their defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help: str) -> Any:
    """A field with the sentence that explains it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one broker."""

    data: str = setting("./data", "The data directory; made if it is missing.")
    node_id: int = setting(0, "This broker's number, as Kafka clients see it.")
    durability: str = setting(
        "sync", "What an acknowledgement promises for topics that do not say: sync, async or memory."
    )

    kafka: str = setting("127.0.0.1:9092", "HOST:PORT of the Kafka door; port 0 picks one, `off` closes the door.")
    kafka_advertised: str = setting("", "HOST:PORT that Kafka clients are told; by default where the door listens.")
    http: str = setting("127.0.0.1:9080", "HOST:PORT of the HTTP door (metrics and health), or `off`.")
    tls_cert: str = setting("", "A PEM file with the certificate chain: the Kafka door then speaks TLS only.")
    tls_key: str = setting("", "A PEM file with the certificate's private key.")
    tls_client_ca: str = setting("", "A PEM file with the authorities whose client certificates are required.")

    # Limits of a connection and a request.
    request_max_bytes: int = setting(
        104_857_600, "The largest request that is read; a larger one closes its connection."
    )
    connections_max: int = setting(12_000, "Connections a door holds at once; more are closed as they come.")
    connections_idle_ms: int = setting(600_000, "A connection without a request for this long is closed.")
    array_max: int = setting(1_000_000, "The most elements that a request may announce in one array.")
    fetch_max_bytes: int = setting(57_671_680, "The most bytes of records in one fetch reply.")
    fetch_sessions_max: int = setting(1_000, "Incremental fetch sessions kept at once.")
    decompressed_max_bytes: int = setting(
        134_217_728, "The most bytes that one batch may unpack to where the broker reads records."
    )
    quota_produce_bytes: int = setting(0, "Bytes a second that one client id may produce; 0: no limit.")
    quota_fetch_bytes: int = setting(0, "Bytes a second that one client id may fetch; 0: no limit.")

    # Topics.
    auto_create_topics: bool = setting(True, "Make a topic when a client first names it.")
    num_partitions: int = setting(1, "Partitions of a topic made without saying how many.")
    partitions_max: int = setting(100_000, "The most partitions of one topic.")

    # The log.
    journal_bytes: int = setting(33_554_432, "Size of one journal file.")
    tail_bytes: int = setting(
        67_108_864, "Memory for the newest batches of all partitions: tail reads, and what waits for its segment."
    )
    direct_bytes: int = setting(
        131_072, "A `sync` batch of at least this size goes straight to its segment, not through the journal."
    )
    open_files_max: int = setting(1_024, "Segment descriptors kept open at once.")
    checkpoint_ms: int = setting(30_000, "How often recovery points move up while there is traffic.")
    retention_check_ms: int = setting(300_000, "How often retention looks for segments to drop.")
    compaction_check_ms: int = setting(15_000, "How often compaction looks for partitions that are worth it.")
    log_segment_bytes: int = setting(1 << 30, "A segment rolls at this size.")
    log_segment_ms: int = setting(604_800_000, "A segment rolls at this age.")
    log_retention_ms: int = setting(604_800_000, "Records are kept this long; -1: for ever.")
    log_retention_bytes: int = setting(-1, "Bytes kept of each partition; -1: no limit.")
    message_max_bytes: int = setting(1_048_588, "The largest batch that is accepted.")
    producer_id_expiration_ms: int = setting(
        86_400_000, "An idempotent producer is forgotten after this long without a batch."
    )

    # Groups.
    group_min_session_timeout_ms: int = setting(6_000, "The shortest session timeout that a group member may ask for.")
    group_max_session_timeout_ms: int = setting(
        1_800_000, "The longest session timeout that a group member may ask for."
    )
    group_initial_rebalance_delay_ms: int = setting(
        0, "How long the first rebalance of an empty group waits for more members."
    )
    group_max_size: int = setting(10_000, "Members of one group.")
    offsets_partitions: int = setting(50, "Partitions of __consumer_offsets when it is made.")
    offsets_retention_ms: int = setting(604_800_000, "Offsets of an empty group are kept this long.")
    offset_metadata_max_bytes: int = setting(4_096, "The longest metadata string of a committed offset.")

    log_level: str = setting("info", "debug, info, warning or error.")
    log_format: str = setting("auto", "console or json; auto: console on a terminal, json elsewhere.")
