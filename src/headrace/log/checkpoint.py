"""The checkpoint: what a start needs to know without opening a segment.

One small file, replaced as a whole: the catalogue of topics, each partition's log start, recovery point and leader
epoch, the counters, and the number of the first journal frame that still matters. What changed since stands in the
journal. A file `clean-shutdown` beside it says that nothing did, and that every partition ends at its recovery point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from uuid import UUID

from headrace.errors import CheckpointDamaged, DataDirectoryInvalid
from headrace.log import checked
from headrace.log.interface import Durability, TopicSettings
from headrace.runtime.disk import Disk, replace_whole

PATH = "checkpoint"
CLEAN_PATH = "clean-shutdown"
VERSION = 1
# Numbers are of 64 bits to Kafka, and to the kernels.
INT64 = (-(1 << 63), (1 << 63) - 1)


@dataclass(slots=True)
class TopicRecord:
    """A topic as the checkpoint and the journal's catalogue entries write it."""

    name: str
    id: UUID
    config: Mapping[str, str]
    settings: TopicSettings
    partitions: list[tuple[int, int]]
    """(log start, recovery point) by partition."""
    epochs: list[int] = field(default_factory=list)
    """The leader epoch by partition; empty where all have the log's."""


@dataclass(slots=True)
class Checkpoint:
    """The whole of it."""

    cluster_id: str
    epoch: int = 0
    journal_from: int = 1
    counters: dict[str, int] = field(default_factory=dict)
    topics: list[TopicRecord] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=list)
    """Of a replica: each epoch of its group's journal, and the sequence of the first frame in it."""


def settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    return {**asdict(settings), "durability": settings.durability.value}


def settings_from_json(values: Mapping[str, Any]) -> TopicSettings:
    known = {each.name for each in fields(TopicSettings)}
    kept = {name: value for name, value in values.items() if name in known}
    if any(isinstance(value, int) and not INT64[0] <= value <= INT64[1] for value in kept.values()):
        raise ValueError(f"not the settings of a topic: {kept}")
    return TopicSettings(**{**kept, "durability": Durability(values["durability"])})


def topic_to_json(topic: TopicRecord) -> dict[str, Any]:
    values = {
        "name": topic.name,
        "id": topic.id.hex,
        "config": dict(topic.config),
        "settings": settings_to_json(topic.settings),
        "partitions": topic.partitions,
    }
    return values | {"epochs": topic.epochs} if topic.epochs else values


def topic_from_json(value: Mapping[str, Any]) -> TopicRecord:
    return TopicRecord(
        value["name"],
        UUID(hex=value["id"]),
        value["config"],
        settings_from_json(value["settings"]),
        [(start, point) for start, point in value["partitions"]],
        value.get("epochs", []),
    )


def replay_changes(topics: Iterable[TopicRecord], changes: Sequence[Mapping[str, Any]]) -> list[TopicRecord]:
    """The topics of a checkpoint after the changes of the catalogue that the journal has. The checkpoint is newer than
    the first of them: what it has is not made again, and a topic that came and went since does not take the place of a
    later one of its name."""
    known = {topic.id: topic for topic in topics}
    deleted = {UUID(hex=change["id"]) for change in changes if change["op"] == "delete"}
    for change in changes:
        if change["op"] == "create":
            record = topic_from_json(change["topic"])
            known.setdefault(record.id, record)
        elif change["op"] == "alter" and (topic := known.get(UUID(hex=change["id"]))) is not None:
            topic.config, topic.settings = change["config"], settings_from_json(change["settings"])
            topic.partitions += [(0, 0)] * (change["partitions"] - len(topic.partitions))
    return [topic for topic in known.values() if topic.id not in deleted]


def save(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint durably. Blocks."""
    # A line a topic: each line is encoded by itself, so that the interpreter is never held for all of them.
    head: dict[str, object] = {
        "version": VERSION,
        "cluster_id": checkpoint.cluster_id,
        "epoch": checkpoint.epoch,
        "journal_from": checkpoint.journal_from,
        "counters": checkpoint.counters,
    }
    if checkpoint.history:
        head["history"] = checkpoint.history
    lines = [json.dumps(head, separators=(",", ":"))]
    lines += [json.dumps(topic_to_json(topic), separators=(",", ":")) for topic in checkpoint.topics]
    body = "\n".join(lines).encode()
    checked.save(disk, PATH, body)


def load(disk: Disk) -> Checkpoint | None:
    """The checkpoint, or None where there is none (a new data directory). Blocks."""
    try:
        body = checked.load(disk, PATH)
    except checked.ChecksumWrong:
        raise CheckpointDamaged(
            f"the file {PATH!r} does not fit its checksum: restore it from a backup, "
            "or let `headrace log repair` put it together again"
        ) from None
    if body is None:
        return None
    head, *topics = body.decode().split("\n")
    values = json.loads(head)
    if values["version"] != VERSION:
        raise DataDirectoryInvalid(
            f"the data directory is of version {values['version']}, this Headrace reads {VERSION}: use a newer Headrace"
        )
    return Checkpoint(
        values["cluster_id"],
        values["epoch"],
        values["journal_from"],
        values["counters"],
        [topic_from_json(json.loads(line)) for line in topics],
        [(epoch, first) for epoch, first in values.get("history", [])],
    )


def mark_clean(disk: Disk) -> None:
    """Say that this stop left nothing to recover. Blocks."""
    replace_whole(disk, CLEAN_PATH, b"")


def take_clean_mark(disk: Disk) -> bool:
    """Whether the last stop was clean; the mark is gone afterwards, durably. Blocks."""
    if not disk.exists(CLEAN_PATH):
        return False
    disk.remove(CLEAN_PATH)
    disk.sync_dir("")
    return True


def folders_of(topics: Sequence[TopicRecord]) -> set[str]:
    """The partition folders that the topics may have."""
    return {f"{topic.name}-{index}" for topic in topics for index in range(len(topic.partitions))}
