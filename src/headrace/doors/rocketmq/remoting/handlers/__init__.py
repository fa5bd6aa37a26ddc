"""What producers, consumers and administrators ask of a broker, by RocketMQ's request codes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.doors.rocketmq.codes import Request
from headrace.doors.rocketmq.connection import Handlers
from headrace.doors.rocketmq.remoting.handlers.assignment import AssignmentHandlers
from headrace.doors.rocketmq.remoting.handlers.clients import ClientHandlers
from headrace.doors.rocketmq.remoting.handlers.connections import ConnectionHandlers
from headrace.doors.rocketmq.remoting.handlers.figures import FigureHandlers
from headrace.doors.rocketmq.remoting.handlers.groups import GroupHandlers
from headrace.doors.rocketmq.remoting.handlers.lookup import LookupHandlers
from headrace.doors.rocketmq.remoting.handlers.offsets import OffsetHandlers
from headrace.doors.rocketmq.remoting.handlers.peek import PeekHandler
from headrace.doors.rocketmq.remoting.handlers.pop import PopHandlers
from headrace.doors.rocketmq.remoting.handlers.progress import ProgressHandlers
from headrace.doors.rocketmq.remoting.handlers.pull import PullHandler
from headrace.doors.rocketmq.remoting.handlers.query import QueryHandler
from headrace.doors.rocketmq.remoting.handlers.recall import RecallHandler
from headrace.doors.rocketmq.remoting.handlers.reply import ReplyHandler
from headrace.doors.rocketmq.remoting.handlers.reset import ResetHandler
from headrace.doors.rocketmq.remoting.handlers.send import SendHandler
from headrace.doors.rocketmq.remoting.handlers.topics import TopicHandlers
from headrace.doors.rocketmq.remoting.handlers.transactions import TransactionHandler
from headrace.doors.rocketmq.remoting.rates import Rates

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting


def of(remoting: Remoting) -> Handlers:
    """The handlers of a broker's requests."""
    send, pull, reply = SendHandler(remoting), PullHandler(remoting), ReplyHandler(remoting)
    offsets, clients = OffsetHandlers(remoting), ClientHandlers(remoting)
    lookup = LookupHandlers(remoting)
    return {
        **_of_administrators(remoting, lookup),
        **_of_pops(remoting, pull),
        Request.SEND_MESSAGE: send.handle,
        Request.SEND_MESSAGE_V2: send.handle,
        Request.SEND_BATCH_MESSAGE: send.handle,
        Request.SEND_REPLY_MESSAGE: reply.handle,
        Request.SEND_REPLY_MESSAGE_V2: reply.handle,
        Request.RECALL_MESSAGE: RecallHandler(remoting).handle,
        Request.PULL_MESSAGE: pull.handle,
        Request.LITE_PULL_MESSAGE: pull.handle,
        Request.QUERY_CONSUMER_OFFSET: offsets.query,
        Request.UPDATE_CONSUMER_OFFSET: offsets.update,
        Request.GET_MAX_OFFSET: offsets.max,
        Request.GET_MIN_OFFSET: offsets.min,
        Request.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
        Request.GET_EARLIEST_MSG_STORETIME: offsets.earliest,
        Request.QUERY_MESSAGE: QueryHandler(remoting).handle,
        Request.VIEW_MESSAGE_BY_ID: lookup.view,
        Request.CONSUMER_SEND_MSG_BACK: lookup.send_back,
        Request.HEART_BEAT: clients.heartbeat,
        Request.UNREGISTER_CLIENT: clients.unregister,
        Request.GET_CONSUMER_LIST_BY_GROUP: clients.list,
        Request.END_TRANSACTION: TransactionHandler(remoting).end,
        Request.CHECK_CLIENT_CONFIG: clients.check,
        Request.LOCK_BATCH_MQ: clients.lock,
        Request.UNLOCK_BATCH_MQ: clients.unlock,
    }


def _of_pops(remoting: Remoting, pull: PullHandler) -> Handlers:
    """The handlers of what is read by leases."""
    pops, assignment = PopHandlers(remoting, pull), AssignmentHandlers(remoting)
    return {
        Request.POP_MESSAGE: pops.pop,
        Request.ACK_MESSAGE: pops.acknowledge,
        Request.BATCH_ACK_MESSAGE: pops.acknowledge_batch,
        Request.CHANGE_MESSAGE_INVISIBLETIME: pops.change,
        Request.PEEK_MESSAGE: PeekHandler(remoting, pull).handle,
        Request.NOTIFICATION: pops.notify,
        Request.POLLING_INFO: pops.polling,
        Request.QUERY_ASSIGNMENT: assignment.query,
        Request.SET_MESSAGE_REQUEST_MODE: assignment.set_mode,
    }


def _of_administrators(remoting: Remoting, lookup: LookupHandlers) -> Handlers:
    """The handlers of what tools ask for."""
    rates = Rates(asyncio.get_running_loop().time)
    topics, groups = TopicHandlers(remoting, rates), GroupHandlers(remoting)
    progress, reset = ProgressHandlers(remoting, rates), ResetHandler(remoting)
    connections, figures = ConnectionHandlers(remoting, lookup), FigureHandlers(remoting, rates)
    return {
        Request.UPDATE_AND_CREATE_TOPIC: topics.update,
        Request.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_list,
        Request.DELETE_TOPIC_IN_BROKER: topics.delete,
        Request.GET_ALL_TOPIC_CONFIG: topics.list,
        Request.GET_TOPIC_CONFIG: topics.describe,
        Request.GET_TOPIC_STATS_INFO: topics.stats,
        Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_list,
        Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.list,
        Request.GET_SUBSCRIPTIONGROUP_CONFIG: groups.describe,
        Request.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        Request.QUERY_TOPIC_CONSUME_BY_WHO: groups.readers,
        Request.QUERY_TOPICS_BY_CONSUMER: groups.topics,
        Request.QUERY_SUBSCRIPTION_BY_CONSUMER: groups.subscription,
        Request.GET_CONSUME_STATS: progress.consume_stats,
        Request.GET_BROKER_CONSUME_STATS: progress.broker_stats,
        Request.QUERY_CONSUME_TIME_SPAN: progress.time_span,
        Request.QUERY_CORRECTION_OFFSET: progress.correction,
        Request.CLONE_GROUP_OFFSET: progress.clone,
        Request.INVOKE_BROKER_TO_RESET_OFFSET: reset.handle,
        Request.GET_CONSUMER_CONNECTION_LIST: connections.consumers,
        Request.GET_PRODUCER_CONNECTION_LIST: connections.producers,
        Request.GET_ALL_PRODUCER_INFO: connections.all_producers,
        Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: connections.status,
        Request.GET_CONSUMER_RUNNING_INFO: connections.running,
        Request.CONSUME_MESSAGE_DIRECTLY: connections.consume,
        Request.GET_BROKER_RUNTIME_INFO: figures.runtime,
        Request.VIEW_BROKER_STATS_DATA: figures.stats,
        Request.GET_BROKER_CONFIG: figures.config,
        Request.UPDATE_BROKER_CONFIG: figures.update_config,
    }
