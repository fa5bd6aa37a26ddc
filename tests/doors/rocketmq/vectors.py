"""What RocketMQ's own classes write, from `vectors.txt`; `Vectors.java` made it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

_LINES = [line.partition(" ") for line in Path(__file__).with_name("vectors.txt").read_text().splitlines()]
VECTORS = {name: value for name, _, value in _LINES if not name.startswith("hash.")}
HASHES = {bytes.fromhex(tag[2]).decode(): int(number[2]) for tag, number in pairwise(_LINES) if tag[0] == "hash.of"}
