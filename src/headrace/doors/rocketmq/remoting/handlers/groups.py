"""Groups and their settings.

UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200) and its list (225), GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201),
GET_SUBSCRIPTIONGROUP_CONFIG (352), DELETE_SUBSCRIPTIONGROUP (207); what reads what: QUERY_TOPIC_CONSUME_BY_WHO (300),
QUERY_TOPICS_BY_CONSUMER (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.protocol import Problem
from headrace.broker.rocketmq.subscription_groups import SubscriptionGroup
from headrace.broker.security import Operation, Resource
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.connection import Call
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.frames import dump, load
from headrace.doors.rocketmq.names import log_name, rocketmq_name
from headrace.doors.rocketmq.remoting.handlers.clients import read_objects, read_text
from headrace.doors.rocketmq.remoting.paging import describe_version, page
from headrace.doors.rocketmq.subscriptions import describe_subscription
from headrace.doors.rocketmq.topics import GROUP_NAME_MAX

if TYPE_CHECKING:
    from headrace.doors.rocketmq.remoting.listener import Remoting

# Of one request.
GROUPS_MAX = 10_000
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


class GroupHandlers:
    """Makes, changes, lists and deletes groups."""

    def __init__(self, remoting: Remoting) -> None:
        self._remoting = remoting
        self._state = remoting.broker.rocketmq
        self._groups = remoting.broker.groups

    async def update(self, call: Call) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        await self._store(call, [self._parse(load(call.request.body))])
        call.answer()

    async def update_list(self, call: Call) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all, unless one of them makes no sense."""
        given = read_objects(load(call.request.body), "groupConfigList", GROUPS_MAX)
        await self._store(call, [self._parse(each) for each in given])
        call.answer()

    @staticmethod
    def _parse(given: Mapping[str, Any]) -> SubscriptionGroup:
        name = read_text(given, "groupName")
        if not _LEGAL.match(name) or len(name) > GROUP_NAME_MAX:
            raise ResponseError(
                Code.INVALID_PARAMETER,
                f"{name[:40]!r} is not a group name: it has 1 to {GROUP_NAME_MAX} ASCII letters, digits, '%', '|', "
                "'-' and '_'",
            )
        return SubscriptionGroup.parse(name, given)

    async def _store(self, call: Call, groups: list[SubscriptionGroup]) -> None:
        for each in groups:
            call.check(Operation.ALTER_CONFIGS, Resource.GROUP, each.name)
        await self._state.load()
        most = self._remoting.settings.rocketmq_groups_max
        if len(self._state.groups.keys() | {each.name for each in groups}) > most:
            raise ResponseError(
                Code.SYSTEM_ERROR,
                f"{most} groups have settings of their own already (rocketmq_groups_max). Delete some.",
            )
        for each in groups:
            await self._state.put_group(each.name, each)

    async def describe(self, call: Call) -> None:
        """GET_SUBSCRIPTIONGROUP_CONFIG."""
        await self._state.load()
        call.answer(body=dump(_describe(self._remoting.existing_group(call.text("group")))))

    async def list(self, call: Call) -> None:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: those that have settings, members or positions."""
        await self._state.load()
        known = {each.name: each for each in self._state.groups.values()}
        for group in await self._groups.rocketmq.all():
            known.setdefault(group.group_id, SubscriptionGroup(group.group_id))
        chosen = page(call, sorted(known), "groupSeq", "maxGroupNum")
        table = {
            "dataVersion": describe_version(self._remoting.broker),
            "forbiddenTable": {},
            "subscriptionGroupTable": {name: _describe(known[name]) for name in chosen},
        }
        body = await self._remoting.broker.runtime.offload.run(dump, table)
        call.answer(fields={"totalGroupNum": str(len(known))}, body=body)

    async def delete(self, call: Call) -> None:
        """DELETE_SUBSCRIPTIONGROUP: the settings, and the positions where that is asked for."""
        await self._state.load()
        name = call.text("groupName")
        if call.flag("cleanOffset"):
            problem = await self._groups.delete(name)
            if problem is Problem.NON_EMPTY_GROUP:
                raise ResponseError(Code.SYSTEM_ERROR, f"the group {name} has members. Stop them first.")
            if problem not in (Problem.NONE, Problem.GROUP_ID_NOT_FOUND):
                raise ResponseError(Code.SYSTEM_ERROR, f"the positions of {name} were not deleted: {problem.name}")
        if name in self._state.groups:
            await self._state.put_group(name, None)
        call.answer()

    # --- what reads what ----------------------------------------------------------------------------------------------

    async def readers(self, call: Call) -> None:
        """QUERY_TOPIC_CONSUME_BY_WHO: the groups that subscribe to a topic, or have positions in it."""
        topic = self._remoting.topics.find(call.text("topic"))
        found = [] if topic is None else await self._groups.rocketmq.readers(topic.name)
        call.answer(body=dump({"groupList": sorted(found)}))

    async def topics(self, call: Call) -> None:
        """QUERY_TOPICS_BY_CONSUMER: the topics in which a group has positions."""
        _, committed = await self._groups.committed(call.text("group"), None)
        found = sorted(name for name in map(rocketmq_name, committed) if name is not None)
        call.answer(body=dump({"brokerAddr": self._remoting.own_address(call.connection), "topicList": found}))

    def subscription(self, call: Call) -> None:
        """QUERY_SUBSCRIPTION_BY_CONSUMER: what the members of a group read of a topic."""
        group_id, topic = call.text("group"), call.text("topic")
        group = self._groups.rocketmq.find(group_id)
        found = None if group is None else group.subscription(log_name(topic))
        answer: dict[str, object] = {"group": group_id, "topic": topic}
        if found is not None:
            answer["subscriptionData"] = describe_subscription(topic, found)
        call.answer(body=dump(answer))


def _describe(group: SubscriptionGroup) -> dict[str, object]:
    return {"groupName": group.name, **group.values}
