"""Whether a group of RocketMQ's pulls a topic, or pops it: what an administrator has set (`mqadmin setConsumeMode`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

PULL = "PULL"
POP = "POP"
MODES = (PULL, POP)


@dataclass(frozen=True, slots=True)
class RequestMode:
    """Of one group and topic."""

    mode: str
    share_queues: int = 0
    """RocketMQ's `popShareQueueNum`: kept, without an effect; every member pops from all queues."""

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, raw: bytes) -> RequestMode:
        """What was stored."""
        return cls(**json.loads(raw))
