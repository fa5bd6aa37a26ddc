"""The ids that say where a message is: no index is needed for these."""

from __future__ import annotations

import re

from headrace.broker.rocketmq import RocketMqState
from headrace.broker.search.search import Place
from headrace.log.interface import Topic

# As `headrace trace` and the HTTP door write it.
PLACE = re.compile(r"(?:([^/\s]+)/)?([0-9]{1,9})/([0-9]{1,18})")
# RocketMQ's offset ids: address and port of a broker, then the physical offset. With IPv6 they are longer.
OFFSET_ID = re.compile(r"(?:[0-9A-Fa-f]{24})?[0-9A-Fa-f]{16}([0-7][0-9A-Fa-f]{15})")


def place_of(text: str, topic: Topic, rocketmq: RocketMqState) -> Place | None:
    """The place in a topic that an id names: TOPIC/PARTITION/OFFSET, PARTITION/OFFSET, or RocketMQ's offset id; None
    where it is none of these, or one of another topic. The state of RocketMQ has been loaded."""
    if found := PLACE.fullmatch(text):
        return Place(int(found[2]), int(found[3])) if found[1] in (None, topic.name) else None
    if found := OFFSET_ID.fullmatch(text):
        place = rocketmq.offsets.decode(int(found[1], 16))
        if place is not None and place[0] == topic.id:
            return Place(place[1], place[2])
    return None
