"""Consumer groups: the classic protocol, Kafka 4's consumer protocol, and committed offsets.

coordinator.py   finds the group of a request; commits, administration, expiry
shards.py        all partitions of `__consumer_offsets`: making, finding, loading
shard.py         one partition: replay and append
group.py         the state machine of one classic group
classic_state.py what such a group knows, stores, shows, and answers by that alone
members.py       the members of a group of either protocol: ids, instance ids, what they carry
roster.py        the members of a classic group, and what is counted about them
member.py        one member and its waiting requests
offsets.py       what a group has committed
group_codec.py   the formats of `__consumer_offsets`
protocol.py      requests, answers and refusals
subscription.py  the topics in a consumer's metadata
answers.py       answers for a whole group, some in a turn of the loop
deadline.py      timers that are cheap to move
rocketmq_group.py, rocketmq_coordinator.py  groups of RocketMQ's clients, which divide the work themselves
consumer/        groups of the consumer protocol, which the broker divides the work for
"""

from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.protocol import (
    Commit,
    Committer,
    GroupDescription,
    GroupListing,
    Joined,
    JoinRequest,
    Leaver,
    Problem,
    State,
    Synced,
    SyncRequest,
)

__all__ = [
    "Commit",
    "Committer",
    "GroupCoordinator",
    "GroupDescription",
    "GroupListing",
    "JoinRequest",
    "Joined",
    "Leaver",
    "Problem",
    "State",
    "SyncRequest",
    "Synced",
]
