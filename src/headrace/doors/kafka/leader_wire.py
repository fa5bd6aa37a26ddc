"""Who leads, on the wire of Produce and Fetch: in tagged fields, beside the errors of partitions (KIP-951).

A client that is refused because another node leads need not ask for metadata first.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.doors.kafka.placement import Leader
from headrace.doors.kafka.wire import INT32, write_text
from headrace.format.varint import write_varint

NOT_LEADER_OR_FOLLOWER: Final = 6

# How many tagged fields there are, the tag and size of this one; leader and epoch; no tagged fields in it.
CURRENT_LEADER: Final = Struct(">BBBiiB")


def write_endpoint(out: bytearray, leader: Leader) -> None:
    """The tagged fields of a whole reply: the one endpoint that its partitions name."""
    _, host, port, rack = leader.endpoint
    body = bytearray(b"\x02")
    body += INT32.pack(leader.endpoint.node_id)
    write_text(body, host.encode(), True)
    body += INT32.pack(port)
    write_text(body, None if rack is None else rack.encode(), True)
    body += b"\0"
    out += b"\x01\0"
    write_varint(out, len(body))
    out += body
