"""The Kafka door of a node that follows.

It shows the group as the leader would, and lets consumers read what it has applied (KIP-392). What clients send to any
broker, and only the leader can answer, is passed on to it (`relay.py`). Every other request is refused with the error
on which Kafka's clients look for the leader: NOT_LEADER_OR_FOLLOWER for partitions, NOT_COORDINATOR for groups and
transactions, NOT_CONTROLLER for topics and elections. Lists of groups and transactions, which clients put together
from all brokers, are empty here.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from headrace.doors.door import DoorContext
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.configs import Resource
from headrace.doors.kafka.door import KafkaDoor
from headrace.doors.kafka.errors import Unanswerable
from headrace.doors.kafka.placement import other_leader
from headrace.doors.kafka.refusals import refuse
from headrace.doors.kafka.registry import PRODUCE, Api, handler
from headrace.doors.kafka.relay import Relay, RelayFailed
from headrace.doors.kafka.settings import KafkaSettings
from headrace.log.interface import Partition

METADATA, INIT_PRODUCER_ID, DESCRIBE_CONFIGS, DESCRIBE_TOPIC_PARTITIONS = 3, 22, 32, 75

# Answered here: users and rules are the same on all nodes.
_OWN = frozenset(
    (
        "metadata",
        "find_coordinator",
        "sasl_handshake",
        "api_versions",
        "sasl_authenticate",
        "describe_log_dirs",
        "describe_cluster",
        "describe_topic_partitions",
        "describe_acls",
        "describe_user_scram_credentials",
    )
)
_EMPTY = frozenset(("list_groups", "list_transactions"))
_RELAYED = frozenset(
    (
        "describe_configs",
        "alter_configs",
        "incremental_alter_configs",
        "create_acls",
        "delete_acls",
        "alter_user_scram_credentials",
        "list_partition_reassignments",
        "describe_quorum",
        "list_config_resources",
    )
)
_OF_LEADER = frozenset(
    (
        "produce",
        "list_offsets",
        "delete_records",
        "offset_for_leader_epoch",
        "describe_producers",
        "write_txn_markers",
    )
)
_OF_CONTROLLER = _RELAYED | frozenset(
    (
        "create_topics",
        "delete_topics",
        "create_partitions",
        "elect_leaders",
        "alter_partition_reassignments",
    )
)


class KafkaFollowerDoor(KafkaDoor):
    """Kafka's wire protocol in front of a standby."""

    follows = True

    def __init__(self, context: DoorContext[KafkaSettings]) -> None:
        super().__init__(context)
        self._relay = Relay(context.broker, context.shared, context.tls is not None)

    async def stop(self) -> None:
        """Accept no more, answer what is under way, close."""
        self._relay.close()
        await super().stop()

    def epoch_of(self, partition: Partition) -> int:
        """The partition has the epoch of its newest batch; that of the leadership is what clients know."""
        return max(partition.epoch, self.broker.membership.epoch)

    def may_read(self) -> bool:
        """Whether consumers may read here: those of a node that has fallen behind go back to the leader."""
        group = self.broker.membership
        return group.node_id in group.isr

    async def answer(self, api: Api, call: Call, request: Any, frame: bytes) -> dict[str, Any] | bytes | None:
        """What becomes of a request off the hot path, which here is every one but Fetch."""
        if api.name in _EMPTY:
            return {"error_code": ErrorCode.none}
        if api.name in _OWN:
            if self._lacks(api.key, request):
                try:
                    return await self._ask_leader(api, call, frame)
                except RelayFailed:
                    # As far as this node knows.
                    pass
            return await handler(api.key)(call, request)
        if api.key == DESCRIBE_CONFIGS and self._asks_about_this_node(request):
            return await handler(api.key)(call, request)
        if api.name in _RELAYED or (api.key == INIT_PRODUCER_ID and request.transactional_id is None):
            try:
                return await self._ask_leader(api, call, frame)
            except RelayFailed as error:
                return refuse(api.key, call.version, request, _code(api), str(error))
        if api.key == PRODUCE and request.acks == 0:
            raise Unanswerable("a Produce with acks=0 came to a node that does not lead")
        leader = other_leader(self.broker, call.listener)
        who = "no node leads its group just now" if leader is None else f"broker {leader.endpoint.node_id} leads"
        return refuse(api.key, call.version, request, _code(api), f"this node follows: {who}", leader)

    async def _ask_leader(self, api: Api, call: Call, frame: bytes) -> bytes:
        is_flexible = call.version >= api.flexible
        return await self._relay.ask(call.session, api.key, call.version, is_flexible, call.client_id, frame)

    def _lacks(self, key: int, request: Any) -> bool:
        """Whether a client asks for topics that are not here: the leader may have them, or make them."""
        if key not in (METADATA, DESCRIBE_TOPIC_PARTITIONS):
            return False
        topics = self.broker.log.topics
        return any(
            each.name not in topics if each.name is not None else getattr(each, "topic_id", None) not in topics.by_id
            for each in request.topics or ()
        )

    def _asks_about_this_node(self, request: Any) -> bool:
        kinds = (Resource.BROKER, Resource.BROKER_LOGGER)
        return any(each.resource_type in kinds and each.resource_name for each in request.resources)


def _code(api: Api) -> ErrorCode:
    if api.name in _OF_LEADER:
        return ErrorCode.not_leader_or_follower
    return ErrorCode.not_controller if api.name in _OF_CONTROLLER else ErrorCode.not_coordinator
