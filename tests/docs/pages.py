"""The pages of the documentation as programs: which blocks they have, and how each of them is run.

A page is read from top to bottom and its blocks are tried in that order, Python in one namespace, all in one empty
directory and with one broker. A Python block whose first line is a comment that names a file is that file.
A block without a language is a picture, a synopsis or output, and is not run. A comment `<!-- sh: ... -->` or
`<!-- python: ... -->` is run and not shown: what a reader has done long before.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$|^<!-- (sh|python): (.*?) -->$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.py)\n")
_SPARK = re.compile(r"\b(spark|pyspark)\b|headrace pipeline")
# All of their blocks belong together.
OF_SPARK = ("pipeline.md", "jobs.md", "lake.md", "spark.md", "orchestration.md")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the page, where the block's first line stands."""
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The file that the block is; empty where it is a part of the page's program."""
        named = _FILE.match(self.text) if self.language == "python" else None
        return named[1] if named else ""

    @property
    def needs_spark(self) -> bool:
        return self.page.name in OF_SPARK or bool(_SPARK.search(self.text))


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, fence.start()) + 2, fence[1] or fence[3], fence[2] or fence[4])
        for fence in _FENCE.finditer(text)
        if fence[1] or fence[3]
    ]


@dataclass
class Command:
    """A line of a shell block, and the answer in JSON that stands below it."""

    line: str
    answer: object = None


def commands_of(block: Block) -> list[Command]:
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("{"):
            commands[-1].answer = json.loads(line)
        elif line and not line.startswith("#"):
            commands.append(Command(line))
    return commands
