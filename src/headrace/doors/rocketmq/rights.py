"""What each request of RocketMQ's remoting protocol asks for, to the broker and to the name server.

A name in braces is a field of the request, or the first of several that is there. A retry topic belongs to its group:
whoever may read the group may use it.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.security import Operation, Resource
from headrace.broker.security.rights import CLUSTER_NAME, Declaration, Inside, Open, Requires
from headrace.doors.rocketmq.codes import Request

READ, WRITE, DELETE = Operation.READ, Operation.WRITE, Operation.DELETE
ALTER, DESCRIBE, ALTER_CONFIGS = Operation.ALTER, Operation.DESCRIBE, Operation.ALTER_CONFIGS
DESCRIBE_CONFIGS, CLUSTER_ACTION = Operation.DESCRIBE_CONFIGS, Operation.CLUSTER_ACTION


def _topic(operation: Operation, field: str = "topic") -> Requires:
    return Requires(operation, Resource.TOPIC, f"{{{field}}}")


def _group(operation: Operation, field: str = "consumerGroup") -> Requires:
    return Requires(operation, Resource.GROUP, f"{{{field}}}")


def _cluster(operation: Operation) -> Requires:
    return Requires(operation, Resource.CLUSTER, CLUSTER_NAME)


SEND = (_topic(WRITE, "b|topic"),)
CONSUME = (_topic(READ), _group(READ))
SEE_TOPIC = (_topic(DESCRIBE),)
SEE_CLUSTER = (_cluster(DESCRIBE),)
IN_BODY_CONSUME = Inside("READ topic and READ group, which the body names")
LISTED = Open("shows the topics that the client may describe, and leaves out the rest")

SENDS = frozenset((Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE))
"""What makes topics that are missing, which takes CREATE besides."""

BROKER: Mapping[int, Declaration] = {
    **dict.fromkeys(SENDS, SEND),
    Request.SEND_REPLY_MESSAGE: SEND,
    Request.SEND_REPLY_MESSAGE_V2: SEND,
    Request.RECALL_MESSAGE: (_topic(WRITE),),
    Request.PULL_MESSAGE: CONSUME,
    Request.LITE_PULL_MESSAGE: CONSUME,
    Request.QUERY_CONSUMER_OFFSET: (_topic(DESCRIBE), _group(DESCRIBE)),
    Request.UPDATE_CONSUMER_OFFSET: CONSUME,
    Request.GET_MAX_OFFSET: SEE_TOPIC,
    Request.GET_MIN_OFFSET: SEE_TOPIC,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: SEE_TOPIC,
    Request.GET_EARLIEST_MSG_STORETIME: SEE_TOPIC,
    Request.QUERY_MESSAGE: (_topic(READ),),
    Request.VIEW_MESSAGE_BY_ID: Inside("READ topic of the message"),
    Request.CONSUMER_SEND_MSG_BACK: (_group(READ, "group"),),
    Request.HEART_BEAT: Inside("READ of each consumer group and of the topics that it reads"),
    Request.UNREGISTER_CLIENT: Open("a client leaves the groups that it is in"),
    Request.GET_CONSUMER_LIST_BY_GROUP: (_group(DESCRIBE),),
    Request.END_TRANSACTION: Inside("WRITE topic of the message"),
    Request.CHECK_CLIENT_CONFIG: Open("an expression is read, and nothing told"),
    Request.LOCK_BATCH_MQ: Inside("READ group, which the body names"),
    Request.UNLOCK_BATCH_MQ: Inside("READ group, which the body names"),
    Request.POP_MESSAGE: CONSUME,
    Request.ACK_MESSAGE: CONSUME,
    Request.BATCH_ACK_MESSAGE: IN_BODY_CONSUME,
    Request.CHANGE_MESSAGE_INVISIBLETIME: CONSUME,
    Request.PEEK_MESSAGE: CONSUME,
    Request.NOTIFICATION: CONSUME,
    Request.POLLING_INFO: CONSUME,
    Request.QUERY_ASSIGNMENT: IN_BODY_CONSUME,
    Request.SET_MESSAGE_REQUEST_MODE: Inside("ALTER_CONFIGS group, which the body names"),
    Request.UPDATE_AND_CREATE_TOPIC: Inside("ALTER and ALTER_CONFIGS topic, or CREATE where it is missing"),
    Request.UPDATE_AND_CREATE_TOPIC_LIST: Inside("ALTER and ALTER_CONFIGS topic, or CREATE where it is missing"),
    Request.DELETE_TOPIC_IN_BROKER: (_topic(DELETE),),
    Request.GET_ALL_TOPIC_CONFIG: SEE_CLUSTER,
    Request.GET_TOPIC_CONFIG: SEE_TOPIC,
    Request.GET_TOPIC_STATS_INFO: SEE_TOPIC,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: SEE_CLUSTER,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Inside("ALTER_CONFIGS group, which the body names"),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Inside("ALTER_CONFIGS group, which the body names"),
    Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SEE_CLUSTER,
    Request.GET_SUBSCRIPTIONGROUP_CONFIG: (_group(DESCRIBE, "group"),),
    Request.DELETE_SUBSCRIPTIONGROUP: (_group(DELETE, "groupName"),),
    Request.QUERY_TOPIC_CONSUME_BY_WHO: (_topic(DESCRIBE), _cluster(DESCRIBE)),
    Request.QUERY_TOPICS_BY_CONSUMER: (_group(DESCRIBE, "group"),),
    Request.QUERY_SUBSCRIPTION_BY_CONSUMER: (_topic(DESCRIBE), _group(DESCRIBE, "group")),
    Request.GET_CONSUME_STATS: (_group(DESCRIBE),),
    Request.GET_BROKER_CONSUME_STATS: SEE_CLUSTER,
    Request.QUERY_CONSUME_TIME_SPAN: (_topic(DESCRIBE), _group(DESCRIBE, "group")),
    Request.QUERY_CORRECTION_OFFSET: (_topic(DESCRIBE), _cluster(DESCRIBE)),
    Request.CLONE_GROUP_OFFSET: (_group(DESCRIBE, "srcGroup"), _group(READ, "destGroup"), _cluster(DESCRIBE)),
    Request.INVOKE_BROKER_TO_RESET_OFFSET: (_topic(READ), _group(READ, "group")),
    Request.GET_CONSUMER_CONNECTION_LIST: (_group(DESCRIBE),),
    Request.GET_PRODUCER_CONNECTION_LIST: SEE_CLUSTER,
    Request.GET_ALL_PRODUCER_INFO: SEE_CLUSTER,
    Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_topic(DESCRIBE), _group(DESCRIBE, "group")),
    Request.GET_CONSUMER_RUNNING_INFO: (_group(DESCRIBE),),
    Request.CONSUME_MESSAGE_DIRECTLY: (_group(READ),),
    Request.GET_BROKER_RUNTIME_INFO: SEE_CLUSTER,
    Request.VIEW_BROKER_STATS_DATA: SEE_CLUSTER,
    Request.GET_BROKER_CONFIG: (_cluster(DESCRIBE_CONFIGS),),
    Request.UPDATE_BROKER_CONFIG: (_cluster(ALTER_CONFIGS),),
}
NAME_SERVER: Mapping[int, Declaration] = {
    Request.GET_ROUTEINFO_BY_TOPIC: SEE_TOPIC,
    Request.GET_BROKER_CLUSTER_INFO: SEE_CLUSTER,
    Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: LISTED,
    Request.GET_TOPICS_BY_CLUSTER: LISTED,
    Request.GET_SYSTEM_TOPIC_LIST_FROM_NS: LISTED,
    Request.DELETE_TOPIC_IN_NAMESRV: (_topic(DELETE),),
    Request.WIPE_WRITE_PERM_OF_BROKER: (_cluster(ALTER),),
    Request.ADD_WRITE_PERM_OF_BROKER: (_cluster(ALTER),),
    Request.GET_KV_CONFIG: (_cluster(DESCRIBE_CONFIGS),),
    Request.PUT_KV_CONFIG: (_cluster(ALTER_CONFIGS),),
    Request.DELETE_KV_CONFIG: (_cluster(ALTER_CONFIGS),),
    Request.GET_KVLIST_BY_NAMESPACE: (_cluster(DESCRIBE_CONFIGS),),
    Request.REGISTER_BROKER: (_cluster(CLUSTER_ACTION),),
    Request.UNREGISTER_BROKER: (_cluster(CLUSTER_ACTION),),
    Request.QUERY_DATA_VERSION: (_cluster(CLUSTER_ACTION),),
    Request.BROKER_HEARTBEAT: (_cluster(CLUSTER_ACTION),),
}
