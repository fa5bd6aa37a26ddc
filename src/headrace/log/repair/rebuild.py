"""A checkpoint that is damaged or missing, put together again from what else there is: `headrace log repair`.

The file has a line a topic and one checksum for all of it, so a damaged one is read line by line: what parses is
believed in names and configurations, and its offsets are not, because a digit may have changed. Those come from the
folders: a partition begins with its first segment, so records that were deleted from that are there again, and has all
that its newest one has. A topic of which no line is left has its name, its id and its partitions from its folders, and
its configuration from the journal if that was there when it was made; else it keeps everything, until it is given one
again.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headrace.format.batch import header_at
from headrace.log import checkpoint as checkpoints
from headrace.log import spool
from headrace.log.checkpoint import Checkpoint, TopicRecord
from headrace.log.frames import FRAME, Kind
from headrace.log.interface import TopicSettings
from headrace.log.journal import FOLDER, read_frames
from headrace.log.names import segment_bases, segment_path
from headrace.log.repair.salvaged import Row
from headrace.log.repair.verify import problem_of
from headrace.log.scan import SCAN_BYTES, walk
from headrace.log.segments import METADATA_FILE
from headrace.runtime.disk import Disk, read_whole

# What counters go on from, beyond all that was seen of them: how far they had come is unknown.
COUNTER_STEP = 1_000_000

# The configuration of a topic of which none is known.
Default = Callable[[], tuple[Mapping[str, str], TopicSettings]]


@dataclass(slots=True)
class _Newest:
    """What the newest segments say."""

    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Folder -> where its first segment begins and its newest ends."""
    epoch: int = 0
    producer_id: int = -1
    journalled: dict[UUID, dict[int, int]] = field(default_factory=dict)
    """Topics of which the journal has batches, and where those of each partition begin."""


def rebuild(disk: Disk, cluster_id: str, default: Default) -> tuple[Checkpoint, list[Row]]:
    """What the checkpoint should be, and what is not as it was. `cluster_id` is for one whose own is lost. Blocks;
    changes nothing."""
    rows: list[Row] = []
    head, lines = _read_lines(disk)
    newest = _Newest()
    ids = _read_folders(disk, newest)
    journal_from = _first_frame(disk, int(head.get("journal_from", 1)))
    created, counters = _read_journal(disk, journal_from, newest)
    _read_spool(disk, newest)
    _count_in_journal(ids, newest, lines.keys() | created.keys())
    found = Checkpoint(str(head.get("cluster_id", cluster_id)), max(int(head.get("epoch", 0)), newest.epoch))
    found.journal_from = journal_from
    found.counters = {name: int(value) for name, value in head.get("counters", {}).items()}
    if not head:
        lost = "what the cluster is called and how far its counters had come is lost: others take their place"
        rows.append(Row(checkpoints.PATH, lost))
        seen = {"producer-ids": newest.producer_id, "queue": 0} | counters
        found.counters = {name: value + COUNTER_STEP for name, value in seen.items()}
    by_name = {topic.name: topic for topic in lines.values()}
    for name, (topic_id, count) in sorted(ids.items()):
        known = lines.get(topic_id) or by_name.get(name) or created.get(topic_id)
        if known is None:
            config, settings = default()
            known = TopicRecord(name, topic_id, config, settings, [])
            lost = f"the configuration of {name} is lost: it keeps everything until it is given one"
            rows.append(Row(checkpoints.PATH, f"{lost}; {count} of its partitions have files"))
        # What is damaged in a line is in the folders.
        lines.pop(known.id, None)
        known.name, known.id = name, topic_id
        known.partitions += [(0, 0)] * (count - len(known.partitions))
        lines[topic_id] = known
    for topic in lines.values():
        topic.partitions = [
            newest.ends.get(f"{topic.name}-{index}", (point, point))
            for index, (_, point) in enumerate(topic.partitions)
        ]
    found.topics = list(lines.values())
    return found, rows


def _read_lines(disk: Disk) -> tuple[dict[str, Any], dict[UUID, TopicRecord]]:
    """What can be read of the file: its head (empty if it cannot), and topics by their ids."""
    contents = read_whole(disk, checkpoints.PATH) or b""
    head: dict[str, Any] = {}
    topics: dict[UUID, TopicRecord] = {}
    for number, line in enumerate(contents.partition(b"\n")[2].split(b"\n")):
        try:
            values = json.loads(line)
            if number == 0:
                head = values if values["version"] == checkpoints.VERSION and values["cluster_id"] else {}
            else:
                topic = checkpoints.topic_from_json(values)
                topics[topic.id] = topic
        except (ValueError, KeyError, TypeError):
            continue
    return head, topics


def _read_folders(disk: Disk, newest: _Newest) -> dict[str, tuple[UUID, int]]:
    """Topics by name, with their id and the number of their partitions, as far as there are folders."""
    votes: dict[str, Counter[UUID]] = defaultdict(Counter)
    counts: dict[str, int] = defaultdict(int)
    for folder in disk.listdir(""):
        match = re.fullmatch(r"(.+)-(\d+)", folder)
        metadata = read_whole(disk, f"{folder}/{METADATA_FILE}") if match else None
        if match is None or metadata is None:
            continue
        written = re.fullmatch(rb"version: 0\ntopic_id: ([\w-]{22})", metadata)
        if written is None:
            continue
        votes[match[1]][UUID(bytes=urlsafe_b64decode(written[1] + b"=="))] += 1
        counts[match[1]] = max(counts[match[1]], int(match[2]) + 1)
        _read_newest(disk, folder, newest)
    return {name: (ids.most_common(1)[0][0], counts[name]) for name, ids in votes.items()}


def _read_newest(disk: Disk, folder: str, newest: _Newest) -> None:
    bases = segment_bases(disk, folder)
    if not bases:
        return
    end = bases[-1]
    with closing(disk.open(segment_path(folder, end, ".log"))) as file:
        for position, buffer, at in walk(file, 0, file.size(), SCAN_BYTES):
            header = header_at(buffer, at)
            if problem_of(file, position, header, buffer, at, bases[-1], end) is not None:
                break
            end = header.last_offset + 1
            newest.epoch = max(newest.epoch, header.leader_epoch)
            newest.producer_id = max(newest.producer_id, header.producer_id)
    newest.ends[folder] = (bases[0], end)


def _read_spool(disk: Disk, newest: _Newest) -> None:
    """The batches of the newest epoch, which may be the only ones of it, or of their partitions."""
    for name in disk.listdir(FOLDER):
        if name.endswith(spool.SUFFIX):
            head = (read_whole(disk, f"{FOLDER}/{name}") or b"")[: FRAME.size]
            magic, _, _, epoch, _, _ = FRAME.unpack(head.ljust(FRAME.size, b"\0"))
            newest.epoch = max(newest.epoch, epoch if magic == spool.MAGIC else 0)
    for entry in spool.read_spool(disk, newest.epoch):
        newest.journalled.setdefault(UUID(bytes=entry.topic), {}).setdefault(entry.partition, entry.offset)


def _count_in_journal(ids: dict[str, tuple[UUID, int]], newest: _Newest, known: Collection[UUID]) -> None:
    """Take topics and partitions into account that have no folder yet."""
    names = {topic_id: name for name, (topic_id, _) in ids.items()}
    for topic_id, partitions in newest.journalled.items():
        count = max(partitions) + 1
        if topic_id in names:
            name = names[topic_id]
            ids[name] = (topic_id, max(ids[name][1], count))
        elif topic_id not in known:
            ids[f"unnamed.{topic_id.hex}"] = (topic_id, count)


def _first_frame(disk: Disk, recorded: int) -> int:
    """The first frame of the journal that matters: the one that the head names, or an earlier one from which on all are
    there. What is superfluous is passed over by its offsets."""
    frames = read_frames(disk, 1).frames
    if not frames:
        return recorded
    first = frames[-1]
    for frame in reversed(frames[:-1]):
        if frame.sequence != first.previous:
            break
        first = frame
    return min(recorded, first.sequence)


def _read_journal(disk: Disk, since: int, newest: _Newest) -> tuple[dict[UUID, TopicRecord], dict[str, int]]:
    """The topics that were made or changed as far back as the journal reaches, and its counters."""
    created: dict[UUID, TopicRecord] = {}
    counters: dict[str, int] = {}
    for entry in (entry for frame in read_frames(disk, since).frames for entry in frame.entries()):
        newest.epoch = max(newest.epoch, entry.epoch)
        if entry.kind is Kind.DATA:
            newest.journalled.setdefault(UUID(bytes=entry.topic), {}).setdefault(entry.partition, entry.offset)
        if entry.kind is not Kind.CATALOGUE:
            continue
        change = json.loads(entry.data)
        if change["op"] == "counter":
            counters[change["name"]] = max(counters.get(change["name"], 0), change["value"])
        elif change["op"] == "create":
            record = checkpoints.topic_from_json(change["topic"])
            created[record.id] = record
        elif change["op"] == "delete":
            newest.journalled.pop(UUID(hex=change["id"]), None)
        elif change["op"] == "alter" and (topic := created.get(UUID(hex=change["id"]))) is not None:
            topic.config, topic.settings = change["config"], checkpoints.settings_from_json(change["settings"])
    return created, counters
