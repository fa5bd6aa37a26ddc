"""Where applications of the tests run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A system to run on."""

    url: str
    kafka: str
