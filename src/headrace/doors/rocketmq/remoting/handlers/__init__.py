"""What producers, consumers and administrators ask of a broker, by RocketMQ's request codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.connection import Handlers
from headrace.doors.rocketmq.remoting.handlers.clients import ClientHandlers
from headrace.doors.rocketmq.remoting.handlers.lookup import LookupHandlers
from headrace.doors.rocketmq.remoting.handlers.offsets import OffsetHandlers
from headrace.doors.rocketmq.remoting.handlers.pull import PullHandler
from headrace.doors.rocketmq.remoting.handlers.recall import RecallHandler
from headrace.doors.rocketmq.remoting.handlers.send import SendHandler
from headrace.doors.rocketmq.remoting.handlers.topics import TopicHandlers
from headrace.doors.rocketmq.remoting.handlers.transactions import TransactionHandler

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting


def of(remoting: Remoting) -> Handlers:
    """The handlers of a broker's requests."""
    send, pull = SendHandler(remoting), PullHandler(remoting)
    offsets, clients, topics = OffsetHandlers(remoting), ClientHandlers(remoting), TopicHandlers(remoting)
    lookup = LookupHandlers(remoting)
    return {
        Request.SEND_MESSAGE: send.handle,
        Request.SEND_MESSAGE_V2: send.handle,
        Request.SEND_BATCH_MESSAGE: send.handle,
        Request.RECALL_MESSAGE: RecallHandler(remoting).handle,
        Request.PULL_MESSAGE: pull.handle,
        Request.LITE_PULL_MESSAGE: pull.handle,
        Request.QUERY_CONSUMER_OFFSET: offsets.query,
        Request.UPDATE_CONSUMER_OFFSET: offsets.update,
        Request.GET_MAX_OFFSET: offsets.max,
        Request.GET_MIN_OFFSET: offsets.min,
        Request.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
        Request.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
        Request.VIEW_MESSAGE_BY_ID: lookup.view,
        Request.CONSUMER_SEND_MSG_BACK: lookup.send_back,
        Request.HEART_BEAT: clients.heartbeat,
        Request.UNREGISTER_CLIENT: clients.unregister,
        Request.GET_CONSUMER_LIST_BY_GROUP: clients.list,
        Request.END_TRANSACTION: TransactionHandler(remoting).end,
        Request.LOCK_BATCH_MQ: clients.lock,
        Request.UNLOCK_BATCH_MQ: clients.unlock,
        Request.UPDATE_AND_CREATE_TOPIC: topics.update,
        Request.DELETE_TOPIC_IN_BROKER: topics.delete,
    }
