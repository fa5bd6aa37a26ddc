"""The settings of the broker. It stands on the log and knows what that is given, too."""

from __future__ import annotations

from headrace.broker.quota_settings import QuotaSettings
from headrace.broker.security_settings import SecuritySettings
from headrace.errors import ConfigError
from headrace.log.settings import LogSettings
from headrace.settings import Settings, setting


class NodeSettings(Settings):
    """What makes a broker the one it is."""

    TITLE = "Node"

    data: str = setting("./data", "The data directory; created if it is missing.", metavar="DIR")
    node_id: int = setting(0, "This broker's number, as Kafka clients see it.", most=(1 << 31) - 1)
    durability: str = setting(
        "sync",
        "What an acknowledgement promises on topics without a setting of their own: sync, async or memory.",
        choices=("sync", "async", "memory"),
    )


class TopicLimits(Settings):
    """How topics come to be, and how many partitions they may have."""

    TITLE = "Topics"

    auto_create_topics: bool = setting(True, "Create a topic when a client first names it.")
    num_partitions: int = setting(1, "Partitions of a topic created without a number.", least=1)
    partitions_max: int = setting(10_000, "The most partitions of one topic.", least=1)
    partitions_per_request_max: int = setting(
        10_000, "The most partitions that one CreateTopics or CreatePartitions may ask for.", least=1
    )
    partitions_total_max: int = setting(100_000, "The most partitions of all topics.", least=1)


class BrokerSettings(LogSettings, QuotaSettings, SecuritySettings, TopicLimits, NodeSettings):
    """What a broker is given."""

    TITLE = "Deduplication, groups, transactions, queues, half messages"

    # Deduplication.
    deduplication_window_ms: int = setting(
        600_000,
        "The window that a topic gets with its first message with a deduplication id over HTTP or NSQ; 0: none.",
        most=604_800_000,
    )
    deduplication_max_ids: int = setting(
        1_000_000,
        "Deduplication ids that are remembered in all, about 60 bytes each; above it the oldest are evicted early.",
        least=1,
    )

    # Search.
    search_ms: int = setting(
        2_000, "How long one search request looks for messages; its answer reports how far it came.", least=1
    )
    searches_max: int = setting(4, "Searches at once; more are refused, and clients try again.", least=1)

    # Registration.
    registration: str = setting(
        "allow",
        "What happens when a client uses a topic, a group or a queue without an approved registration: allow, warn"
        " (it is logged and listed), or refuse.",
        choices=("allow", "warn", "refuse"),
    )

    # Figures.
    figures_interval_ms: int = setting(
        1_000, "How often the broker measures the figures of `/v1/figures`: the oldest that they may be.", least=1
    )

    # Too fast a producer, and what is consumed.
    overflow_held_bytes: int = setting(
        67_108_864,
        "Bytes of requests that wait on all topics with `overflow=block`; more are refused at once, to be retried.",
        least=1,
    )
    consumed_check_ms: int = setting(1_000, "How often `retention=consumed` looks for records to delete.", least=1)
    consumed_free_bytes: int = setting(
        1_048_576, "Settled records of a partition are deleted once that frees this much.", least=1
    )
    consumed_quiet_ms: int = setting(
        60_000, "Settled records are deleted, however few, once nothing more was settled for this long."
    )

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
    transactions_partitions: int = setting(50, "Partitions of __transaction_state when it is created.", least=1)
    transaction_max_timeout_ms: int = setting(900_000, "The longest timeout that a transaction may ask for.", least=1)
    transactional_id_expiration_ms: int = setting(
        604_800_000, "A transactional id expires after this long without a transaction.", least=1
    )
    transactional_id_unused_expiration_ms: int = setting(
        900_000, "A transactional id that never had a transaction expires after this long.", least=1
    )
    transactional_ids_unused_max: int = setting(
        2_000,
        "Transactional ids without a transaction that one client address may have; one more discards its oldest.",
        least=1,
    )
    transactional_ids_max: int = setting(100_000, "The most transactional ids.", least=1)
    offsets_partitions: int = setting(50, "Partitions of __consumer_offsets when it is created.", least=1)
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
        50,
        "How long settlements of queues may wait until they are written: after a crash these messages are "
        "delivered again.",
        least=1,
    )
    queue_leases_max: int = setting(
        1_000_000,
        "Messages of one queue that may be leased at once; above it receives are refused until some are settled.",
        least=1,
    )
    queue_receives_max: int = setting(10_000, "Receives that may wait for messages of one queue at once.", least=1)
    queue_partitions_max: int = setting(2_000, "The most partitions of a topic that has queues.", least=1)
    queue_state_partitions: int = setting(4, "Partitions of __queues when it is created.", least=1)
    queue_snapshot_bytes: int = setting(
        4_194_304, "Once this much was written to a partition of __queues, a snapshot replaces it.", least=1
    )

    # Half messages.
    half_timeout_ms: int = setting(
        6_000,
        "How long a half message may be undecided before its producer group is asked; a message can override it.",
        least=1,
    )
    half_timeout_max_ms: int = setting(86_400_000, "The longest such time that a message may have.", least=1)
    half_check_interval_ms: int = setting(30_000, "How often the producer group is asked again.", least=1)
    half_checks_max: int = setting(15, "After this many rounds of check-back a half message is given up.")
    half_give_up: str = setting(
        "rollback",
        "What giving up means: rollback, commit, or park (kept and listed until a client decides).",
        choices=("rollback", "commit", "park"),
    )
    half_max_pending: int = setting(100_000, "Half messages that may be undecided at once; more are refused.", least=1)
    half_decided_max: int = setting(
        10_000, "Decided half messages whose outcome is remembered, for producers that decide again."
    )
    half_log_bytes: int = setting(
        67_108_864, "Above this size __half drops outcomes early and moves old undecided messages forward.", least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.half_timeout_ms > self.half_timeout_max_ms:
            raise ConfigError(
                f"half_timeout_ms ({self.half_timeout_ms}) is above half_timeout_max_ms ({self.half_timeout_max_ms}). "
                "Lower the former, or raise the latter."
            )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ConfigError(
                f"group_consumer_heartbeat_interval_ms ({self.group_consumer_heartbeat_interval_ms}) is not below "
                f"group_consumer_session_timeout_ms ({self.group_consumer_session_timeout_ms}). "
                "Lower the former, or raise the latter."
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError(
                f"group_min_session_timeout_ms ({self.group_min_session_timeout_ms}) is above "
                f"group_max_session_timeout_ms ({self.group_max_session_timeout_ms}). "
                "Lower the former, or raise the latter."
            )
