"""The calls that the console makes, as one user. Each is a documented route of docs/rest-api.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.console.client import models as m
from headrace.console.client.transport import NOBODY, Credentials, Query, T, Transport

Places = Sequence[Mapping[str, int]]
"""Messages of a queue: each has partition and offset, or where it is parked."""


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _topic(name: str) -> str:
    return f"/v1/topics/{part(name)}"


def _queue(topic: str, queue: str) -> str:
    return f"{_topic(topic)}/queues/{part(queue)}"


@dataclass(frozen=True, slots=True)
class Api:
    """A broker, as one user."""

    transport: Transport
    credentials: Credentials = NOBODY

    async def _get(self, kind: type[T], path: str, query: Query | None = None) -> T:
        return await self.transport.ask(kind, "GET", path, self.credentials, query)

    async def _do(self, kind: type[T], method: str, path: str, body: object = None) -> T:
        return await self.transport.ask(kind, method, path, self.credentials, None, body)

    # --- figures ------------------------------------------------------------------------------------------------------

    async def cluster(self) -> m.Cluster:
        return await self._get(m.Cluster, "/v1/cluster")

    async def figures(self, since: str) -> m.FigurePage:
        return await self._get(m.FigurePage, "/v1/figures", {"since": since, "limit": 2000})

    async def overview(self) -> m.Overview:
        return await self._get(m.Overview, "/v1/overview")

    # --- topics -------------------------------------------------------------------------------------------------------

    async def topics(self, query: Query) -> m.Topics:
        return await self._get(m.Topics, "/v1/topics", query)

    async def topic(self, name: str) -> m.TopicDetail:
        return await self._get(m.TopicDetail, _topic(name))

    async def create_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> Any:
        return await self._do(Any, "PUT", _topic(name), _given(partitions=partitions, settings=dict(settings)))

    async def check_topic(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> m.TopicCheck:
        body = _given(partitions=partitions, settings=dict(settings))
        return await self._do(m.TopicCheck, "POST", f"{_topic(name)}/check", body)

    async def delete_topic(self, name: str) -> Any:
        return await self._do(Any, "DELETE", _topic(name))

    async def add_partitions(self, name: str, count: int) -> Any:
        return await self._do(Any, "POST", f"{_topic(name)}/partitions", {"count": count})

    async def topic_settings(self, name: str = "") -> m.Settings:
        return await self._get(m.Settings, f"{_topic(name)}/settings" if name else "/v1/topic-settings")

    async def change_topic(self, name: str, settings: Mapping[str, str | None], dry_run: bool) -> m.SettingChanges:
        body = {"settings": dict(settings), "dry_run": dry_run}
        return await self._do(m.SettingChanges, "PATCH", f"{_topic(name)}/settings", body)

    async def delete_records(self, name: str, which: Mapping[str, object], dry_run: bool) -> m.DeletedRecords:
        body = {**which, "dry_run": dry_run}
        return await self._do(m.DeletedRecords, "POST", f"{_topic(name)}/delete-records", body)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def produce(self, topic: str, message: Mapping[str, object]) -> Any:
        return await self._do(Any, "POST", f"{_topic(topic)}/messages", dict(message))

    async def browse(self, topic: str, query: Query) -> m.Messages:
        return await self._get(m.Messages, f"{_topic(topic)}/messages", query)

    async def tail(self, topic: str, query: Query) -> m.Messages:
        return await self._get(m.Messages, f"{_topic(topic)}/tail", query)

    async def message(self, topic: str, partition: int, offset: int, form: str = "auto") -> m.Message:
        path = f"{_topic(topic)}/partitions/{partition}/messages/{offset}"
        return await self._get(m.Message, path, {"form": form})

    async def value(self, topic: str, partition: int, offset: int) -> bytes:
        path = f"{_topic(topic)}/partitions/{partition}/messages/{offset}/value"
        return await self.transport.read("GET", path, self.credentials)

    async def find(self, query: Query) -> m.Messages:
        return await self._get(m.Messages, "/v1/search", query)

    async def life(self, id: str) -> m.Life:
        return await self._get(m.Life, "/v1/life", {"id": id})

    # --- groups -------------------------------------------------------------------------------------------------------

    async def groups(self, query: Query) -> m.Groups:
        return await self._get(m.Groups, "/v1/groups", query)

    async def group(self, name: str) -> m.GroupDetail:
        return await self._get(m.GroupDetail, f"/v1/groups/{part(name)}")

    async def reset_group(self, name: str, body: Mapping[str, object], dry_run: bool) -> m.Reset:
        return await self._do(m.Reset, "POST", f"/v1/groups/{part(name)}/reset", {**body, "dry_run": dry_run})

    async def delete_group(self, name: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/groups/{part(name)}")

    # --- queues -------------------------------------------------------------------------------------------------------

    async def queues(self, query: Query) -> m.Queues:
        return await self._get(m.Queues, "/v1/queues", query)

    async def queue(self, topic: str, queue: str) -> m.Queue:
        return await self._get(m.Queue, _queue(topic, queue))

    async def create_queue(self, topic: str, queue: str) -> m.Queue:
        return await self._do(m.Queue, "PUT", _queue(topic, queue), {})

    async def change_queue(self, topic: str, queue: str, settings: Mapping[str, object]) -> m.Queue:
        return await self._do(m.Queue, "PATCH", _queue(topic, queue), {"settings": dict(settings)})

    async def act_on_queue(self, topic: str, queue: str, action: str) -> m.Queue:
        """`pause`, `unpause` or `empty`."""
        return await self._do(m.Queue, "POST", f"{_queue(topic, queue)}/{action}")

    async def delete_queue(self, topic: str, queue: str) -> Any:
        return await self._do(Any, "DELETE", _queue(topic, queue))

    async def peek(self, topic: str, queue: str, limit: int) -> m.Messages:
        return await self._get(m.Messages, f"{_queue(topic, queue)}/peek", {"limit": limit})

    async def queue_messages(self, topic: str, queue: str, query: Query) -> m.Messages:
        return await self._get(m.Messages, f"{_queue(topic, queue)}/messages", query)

    async def intervene(self, topic: str, queue: str, act: str, messages: Places, **more: object) -> m.Outcomes:
        """`settle`, `requeue` or `reject`; at most 200 messages."""
        body = {"messages": [dict(each) for each in messages], **more}
        return await self._do(m.Outcomes, "POST", f"{_queue(topic, queue)}/messages/{act}", body)

    # --- dead letters, timers, transactions ---------------------------------------------------------------------------

    async def dead_topics(self) -> m.DeadTopics:
        return await self._get(m.DeadTopics, "/v1/dead-letters")

    async def dead_kinds(self, topic: str) -> m.DeadKinds:
        return await self._get(m.DeadKinds, f"/v1/dead-letters/{part(topic)}")

    async def dead_letters(self, topic: str, query: Query) -> m.DeadLetters:
        return await self._get(m.DeadLetters, f"/v1/dead-letters/{part(topic)}/messages", query)

    async def redrive(self, topic: str, messages: Sequence[Mapping[str, object]]) -> m.Outcomes:
        """At most 200 letters; those that are `left` were not looked at."""
        body = {"messages": [dict(each) for each in messages]}
        return await self._do(m.Outcomes, "POST", f"/v1/dead-letters/{part(topic)}/redrive", body)

    async def timers(self, query: Query) -> m.Timers:
        return await self._get(m.Timers, "/v1/timers", query)

    async def cancel_timer(self, id: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/timers/{part(id)}")

    async def prepared(self, query: Query) -> m.PreparedMessages:
        return await self._get(m.PreparedMessages, "/v1/half", query)

    async def decide_prepared(self, id: str, decision: str) -> Any:
        """`commit` or `rollback`."""
        return await self._do(Any, "POST", f"/v1/half/{part(id)}/{decision}")

    async def transactions(self, query: Query) -> m.Transactions:
        return await self._get(m.Transactions, "/v1/transactions", query)

    async def abort_transaction(self, id: str) -> Any:
        return await self._do(Any, "POST", f"/v1/transactions/{part(id)}/abort", {})

    # --- clients and applications -------------------------------------------------------------------------------------

    async def clients(self, query: Query) -> m.Clients:
        return await self._get(m.Clients, "/v1/clients", query)

    async def kill_client(self, id: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/clients/{part(id)}")

    async def apps(self, query: Query) -> m.Apps:
        return await self._get(m.Apps, "/v1/apps", query)

    async def app(self, name: str) -> m.AppDetail:
        return await self._get(m.AppDetail, f"/v1/apps/{part(name)}")

    async def change_app(self, name: str, subscription: str, settings: Mapping[str, object]) -> Any:
        body = {"subscription": subscription, "settings": dict(settings)}
        return await self._do(Any, "PATCH", f"/v1/apps/{part(name)}/live", body)

    async def app_history(self, name: str) -> m.LiveHistory:
        return await self._get(m.LiveHistory, f"/v1/apps/{part(name)}/history")

    async def undo_app(self, name: str, offset: int) -> Any:
        return await self._do(Any, "POST", f"/v1/apps/{part(name)}/undo", {"offset": offset})

    async def registrations(self, query: Query) -> m.Registrations:
        return await self._get(m.Registrations, "/v1/registrations", query)

    async def request_registration(self, body: Mapping[str, object]) -> Any:
        return await self._do(Any, "POST", "/v1/registrations", dict(body))

    async def decide_registration(self, id: str, decision: str, body: Mapping[str, object]) -> Any:
        """`approve` or `reject`."""
        return await self._do(Any, "POST", f"/v1/registrations/{part(id)}/{decision}", dict(body))

    async def unregistered(self) -> m.Unregistered:
        return await self._get(m.Unregistered, "/v1/registrations/unregistered")

    # --- alerts -------------------------------------------------------------------------------------------------------

    async def rules(self) -> m.Rules:
        return await self._get(m.Rules, "/v1/alerts/rules")

    async def put_rule(self, id: str, body: Mapping[str, object]) -> Any:
        return await self._do(Any, "PUT", f"/v1/alerts/rules/{part(id)}", dict(body))

    async def delete_rule(self, id: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/alerts/rules/{part(id)}")

    async def alert_figures(self) -> m.AlertFigures:
        return await self._get(m.AlertFigures, "/v1/alerts/figures")

    async def silences(self) -> m.Silences:
        return await self._get(m.Silences, "/v1/alerts/silences")

    async def put_silence(self, id: str, body: Mapping[str, object]) -> Any:
        return await self._do(Any, "PUT", f"/v1/alerts/silences/{part(id)}", dict(body))

    async def delete_silence(self, id: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/alerts/silences/{part(id)}")

    async def channels(self) -> m.Channels:
        return await self._get(m.Channels, "/v1/alerts/channels")

    async def put_channel(self, id: str, body: Mapping[str, object]) -> Any:
        return await self._do(Any, "PUT", f"/v1/alerts/channels/{part(id)}", dict(body))

    async def delete_channel(self, id: str) -> Any:
        return await self._do(Any, "DELETE", f"/v1/alerts/channels/{part(id)}")

    async def channel_secret(self, id: str) -> m.ChannelSecret:
        return await self._get(m.ChannelSecret, f"/v1/alerts/channels/{part(id)}/secret")

    async def ask(self, method: str, path: str, query: Query | None = None, body: object = None) -> dict[str, Any]:
        """A route that has no value of its own here."""
        return await self.transport.ask(dict[str, Any], method, path, self.credentials, query, body)


def _given(**fields: object) -> dict[str, object]:
    """A body without what is not given."""
    return {name: value for name, value in fields.items() if value is not None}
