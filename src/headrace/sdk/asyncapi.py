"""What an application reads and sends, as an AsyncAPI 3 document.

It is made of what was declared, and touches no system: topics are channels, subscriptions are operations that receive,
topics of `app.topic` operations that send. Schemas of payloads come from the types. What AsyncAPI has no word for (the
scenario, its values, the dead letters, NSQ's channels) stands in extensions that begin with `x-`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from headrace.sdk.dead_letter import topic_of
from headrace.sdk.handler import Handler
from headrace.sdk.scenario import KAFKA, NSQ, scenario
from headrace.sdk.schema import Schema, content_type, schemas
from headrace.sdk.system import BOTH_WIRES, MEMORY, System, Unsuited
from headrace.sdk.tracing import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from headrace.sdk.app import App
    from headrace.sdk.declarations import Subscription, TopicPlan

VERSION = "3.0.0"
KAFKA_BINDING = "0.5.0"
UNVERSIONED = "0.0.0"
HEADERS = {
    "type": "object",
    "properties": {
        TRACEPARENT: {"type": "string", "description": "the trace that the message belongs to (W3C Trace Context)"},
        TRACESTATE: {"type": "string", "description": "what tracing systems add to it"},
    },
}


def document(app: App, version: str = "") -> dict[str, Any]:
    """The document of an application."""
    return _Document(app).whole(version or UNVERSIONED)


class _Document:
    """One application, while it is written down."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._system = System(app.url, app.name)
        self._channels: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        provided = app.provided
        self._kinds = [Handler(each.function, provided).payload for each in app.subscriptions]
        self._sends = {name: plan for name, plan in app.topics.items() if plan.declared}
        made, self._components = schemas([*self._kinds, *(plan.payload for plan in self._sends.values())])
        self._schemas = iter(made)

    def whole(self, version: str) -> dict[str, Any]:
        for declared, kind in zip(self._app.subscriptions, self._kinds, strict=True):
            self._receive(declared, kind)
        for name, plan in self._sends.items():
            self._send(name, plan)
        return {
            "asyncapi": VERSION,
            "id": f"urn:headrace:app:{quote(self._app.name)}",
            "info": self._info(version),
            "defaultContentType": "application/json",
            "servers": self._servers(),
            "channels": self._channels,
            "operations": self._operations,
            "components": {"schemas": self._components},
        }

    def _info(self, version: str) -> dict[str, Any]:
        app = self._app
        contact: dict[str, str] = {"name": app.owner} if app.owner else {}
        for each in app.contacts:
            kind = "url" if "://" in each else "email" if re.fullmatch(r"[^@\s]+@[^@\s]+", each) else ""
            if kind:
                contact.setdefault(kind, each)
        return {
            "title": app.name,
            "version": version,
            **_given(description=app.description, contact=contact),
            **_given(**{"x-headrace-contacts": list(app.contacts)}),
        }

    def _servers(self) -> dict[str, Any]:
        address = self._system.address
        if address.kind == MEMORY:
            return {"memory": {"host": address.memory or "memory", "protocol": "memory"}}
        secure = "-secure" if address.tls is not None else ""
        servers: dict[str, Any] = {}
        for wire, hosts in ((KAFKA, address.kafka), (NSQ, address.nsq)):
            for number, host in enumerate(filter(None, hosts.split(",")), 1):
                servers[wire if number == 1 else f"{wire}-{number}"] = {"host": host, "protocol": f"{wire}{secure}"}
        return servers

    def _receive(self, declared: Subscription, kind: Any) -> None:
        tuning = declared.tuning
        plan = self._app.topics.get(declared.topic)
        message = self._message(declared.topic, kind, declared.ordered_by or (plan.key if plan else ""), plan)
        operation = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{declared.topic}"},
            "title": getattr(declared.function, "__qualname__", repr(declared.function)),
            **_given(summary=declared.description or _first_line(declared.function)),
            "messages": [{"$ref": message}],
            "bindings": self._consumer(declared),
            "x-headrace-scenario": declared.scenario,
            "x-headrace-tuning": msgspec.json.decode(msgspec.json.encode(tuning)),
            **_given(**{"x-headrace-ordered-by": declared.ordered_by}),
        }
        if not tuning.private:
            operation["x-headrace-dead-letters"] = topic_of(declared.topic, declared.group)
        self._add(f"receive-{declared.topic}-{declared.group}", operation)

    def _consumer(self, declared: Subscription) -> dict[str, Any]:
        """The consumer, in the words of the wire that the system serves it by."""
        chosen = scenario(declared.scenario)
        try:
            wire = self._system.wire_for(chosen, declared.tuning)
        except Unsuited:
            wire = chosen.wire
        if wire == KAFKA and declared.tuning.private:
            # Partitions by hand, in no group.
            return {"kafka": {"clientId": _only(self._app.name), "bindingVersion": KAFKA_BINDING}}
        if wire == KAFKA:
            group = {"groupId": _only(declared.group), "clientId": _only(self._app.name)}
            return {"kafka": {**group, "bindingVersion": KAFKA_BINDING}}
        channel = f"{declared.group}-*#ephemeral" if declared.tuning.private else declared.group
        return {"x-nsq": {"topic": declared.topic, "channel": channel}}

    def _send(self, name: str, plan: TopicPlan) -> None:
        message = self._message(name, plan.payload, plan.key, plan)
        operation = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{name}"},
            **_given(summary=plan.description),
            "messages": [{"$ref": message}],
        }
        self._add(f"send-{name}", operation)

    def _message(self, topic: str, kind: Any, key: str, plan: TopicPlan | None) -> str:
        """Put a message into its channel; the reference to it."""
        channel = self._channels.setdefault(topic, self._channel(topic, plan))
        name = _name(kind)
        message: dict[str, Any] = {
            "name": name,
            "contentType": content_type(kind),
            "headers": HEADERS,
            "payload": next(self._schemas),
        }
        if key:
            schema: Schema = {"type": "string", "description": f"the field {key} of the payload"}
            message["bindings"] = {"kafka": {"key": schema, "bindingVersion": KAFKA_BINDING}}
        others = channel["messages"]
        number = 2
        while name in others and others[name] != message:
            name = f"{_name(kind)}-{number}"
            number += 1
        others[name] = message
        return f"#/channels/{topic}/messages/{name}"

    def _channel(self, topic: str, plan: TopicPlan | None) -> dict[str, Any]:
        channel: dict[str, Any] = {"address": topic, "messages": {}}
        if self._system.address.kind in (KAFKA, *BOTH_WIRES):
            channel["bindings"] = {"kafka": {"topic": topic, "bindingVersion": KAFKA_BINDING}}
        if plan is not None:
            extensions = {"x-headrace-owner": plan.owner, "x-headrace-contacts": list(plan.contacts)}
            channel.update(_given(description=plan.description, **extensions))
        return channel

    def _add(self, name: str, operation: dict[str, Any]) -> None:
        """Under a name of its own: several handlers may read a topic for one group."""
        chosen, number = name, 2
        while chosen in self._operations:
            chosen = f"{name}-{number}"
            number += 1
        self._operations[chosen] = operation


def _given(**values: Any) -> Mapping[str, Any]:
    """Those that say something."""
    return {name: value for name, value in values.items() if value}


def _only(value: str) -> Schema:
    return {"type": "string", "enum": [value]}


def _name(kind: Any) -> str:
    if kind is None:
        return "message"
    return re.sub(r"\W+", "_", kind.__name__ if isinstance(kind, type) else str(kind)).strip("_") or "message"


def _first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
