"""Which requests are refused of a client that takes too much of the loop (`request_percentage`).

Sends, pops and questions are refused, and pulls wait. By what is listed here a client keeps what it has: a lease, its
place in a group, a position. That is done and answered, later or before a connection that is not read for a while.
"""

from __future__ import annotations

from headrace.doors.rocketmq.codes import Request

PULLS = frozenset((Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE))
"""What waits by itself."""
KEPT_REQUESTS = frozenset(
    (
        Request.HEART_BEAT,
        Request.UNREGISTER_CLIENT,
        Request.QUERY_CONSUMER_OFFSET,
        Request.UPDATE_CONSUMER_OFFSET,
        Request.CONSUMER_SEND_MSG_BACK,
        Request.END_TRANSACTION,
        Request.GET_CONSUMER_LIST_BY_GROUP,
        Request.LOCK_BATCH_MQ,
        Request.UNLOCK_BATCH_MQ,
        Request.ACK_MESSAGE,
        Request.BATCH_ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
    )
)
KEPT_METHODS = frozenset(
    (
        "Heartbeat",
        "NotifyClientTermination",
        "AckMessage",
        "ChangeInvisibleDuration",
        "ForwardMessageToDeadLetterQueue",
        "EndTransaction",
    )
)
