"""The settings of the log. Those named `log_*`, and the largest batch, are defaults of topics."""

from __future__ import annotations

from headrace.settings import Settings, setting


class LogSettings(Settings):
    """What a log is given."""

    TITLE = "Log"

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
        3_600_000,
        "How long before retention deletes records that a group or queue has not read the broker warns of it.",
    )
    retention_check_ms: int = setting(300_000, "How often retention looks for segments to delete.", least=1)
    compaction_check_ms: int = setting(
        15_000, "How often compaction looks for partitions that are worth compacting.", least=1
    )
    search_index_check_ms: int = setting(
        30_000, "How often the search indexes of topics with `index` are brought up to date.", least=1
    )
    search_index_block_bytes: int = setting(
        16_777_216, "A search index grows once a partition has this much that is not in it.", least=1
    )
    search_index_rate_bytes: int = setting(
        104_857_600, "Bytes of records that go into search indexes a second at most.", least=1
    )
    decompressed_max_bytes: int = setting(
        134_217_728, "The most bytes that one batch may decompress to, where the broker reads records.", least=1
    )
    log_segment_bytes: int = setting(1 << 30, "A segment rolls at this size.", least=1)
    log_segment_ms: int = setting(604_800_000, "A segment rolls at this age.", least=1)
    log_retention_ms: int = setting(604_800_000, "Records are kept this long; -1: for ever.", least=-1)
    log_retention_bytes: int = setting(-1, "Bytes kept of each partition; -1: no limit.", least=-1)
    message_max_bytes: int = setting(1_048_588, "The largest batch that is accepted.", least=1)
    producer_id_expiration_ms: int = setting(
        86_400_000, "The state of an idempotent producer expires after this long without a batch.", least=1
    )
