"""Settings, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """What may differ from place to place. How the scenario is tuned: `headrace scenario show task`."""

    url: str = "headrace://127.0.0.1"
    """HEADRACE_URL: where the messages are; headrace://, kafka:// or nsq://."""
    topic: str = "x"
    """TOPIC: what is read."""
    workers: int = 8
    """WORKERS: handlers that run at a time."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Config:
        """Raises ValueError, which names what is wrong."""
        return cls(
            url=environment.get("HEADRACE_URL", cls.url),
            topic=environment.get("TOPIC", cls.topic),
            workers=_whole(environment, "WORKERS", cls.workers),
        )


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{name}={value}: it must be a whole number from 1 on")
    return int(value)
