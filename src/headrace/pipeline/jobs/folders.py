"""Whose folder it is. The commits of a folder are the memory of one kind of job: another one would take its offsets for
its own, and leave out all that lies before them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.pipeline.manifest import check_root, check_writable, newest
from headrace.pipeline.offsets import nest
from headrace.pipeline.tables import OWN, TableInvalid
from headrace.targets import local_path

ARCHIVE, LOGS, REPLAY = "archive", "logs", "replay"

# What is there in the folders of some jobs and not of others.
LOGS_SETTINGS = f"{OWN}/logs.json"
# Before it was a streaming query, `logs` kept a state of its own there.
LOGS_BEFORE = f"{OWN}/state"
PLAN = f"{OWN}/plan.json"
CHECKPOINT = f"{OWN}/checkpoint"
# What says whose a checkpoint is.
OWNER = "headrace.json"


class CheckpointInvalid(HeadraceError):
    """A checkpoint belongs to something else."""


def target(to: str | Path, job: str) -> Path:
    """The folder that a job is to write to. Raises where it cannot be that job's; changes nothing."""
    root = Path(local_path(to, "to")).absolute()
    check_root(root)
    check_folder(root, job)
    return root


def check_folder(root: Path, job: str) -> None:
    """Raises where the folder has the commits of another kind of job."""
    found = _kind(root)
    if found not in ("", job):
        raise TableInvalid(
            f"{root} has the results of `{found}`, and cannot have those of `{job}`: give another folder"
        )


def refuse_logs_before(root: Path) -> None:
    """Raises where `logs` has written the folder without a checkpoint of Spark."""
    last = newest(root)
    if last is None or not (root / LOGS_BEFORE).exists():
        return
    raise TableInvalid(
        f"{root} was written by an older `logs`, which had no checkpoint. Its files stay as they are, without the "
        "windows that were open. Give another folder, and --option "
        f"startingOffsets='{json.dumps(nest(last.ends))}' to begin where it ends."
    )


def _kind(root: Path) -> str:
    if (root / PLAN).exists():
        return REPLAY
    if (root / LOGS_SETTINGS).exists() or (root / LOGS_BEFORE).exists():
        return LOGS
    if newest(root) is not None or (root / CHECKPOINT).exists():
        return ARCHIVE
    return ""


def take_checkpoint(folder: Path, job: str, to: str, queries: tuple[str, ...]) -> None:
    """Take a checkpoint, made if it is missing, for what is written under a name. Raises CheckpointInvalid where it is
    another's: its state and its offsets would go on under the wrong name."""
    check_checkpoint(folder, job, to, queries)
    path = folder / OWNER
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{OWNER}.tmp"
    temporary.write_text(json.dumps({"job": job, "to": to}))
    os.replace(temporary, path)


def check_checkpoint(folder: Path, job: str, to: str, queries: tuple[str, ...]) -> None:
    """Raises CheckpointInvalid where a checkpoint cannot be taken; changes nothing."""
    check_writable(folder)
    if not folder.exists():
        return
    mine = {"job": job, "to": to}
    path = folder / OWNER
    if path.exists():
        try:
            owner = json.loads(path.read_bytes())
        except ValueError:
            owner = None
        if owner != mine:
            whose = f"`{owner.get('job')}` to {owner.get('to')}" if isinstance(owner, dict) else "something else"
            raise CheckpointInvalid(
                f"the checkpoint {folder} is that of {whose}, not of `{job}` to {to}: give another folder"
            )
        return
    strangers = sorted(each.name for each in folder.iterdir() if each.name not in (*queries, f"{OWNER}.tmp"))
    if strangers:
        raise CheckpointInvalid(
            f"{folder} is not a checkpoint of `{job}`: it contains {strangers[0]}. Give another folder"
        )
