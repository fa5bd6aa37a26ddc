"""The settings of topics over HTTP: what there are and mean, what a topic has, and changes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Operation as Right
from headrace.broker.security.rights import Open
from headrace.broker.setting_kinds import Setting, set_by_operator
from headrace.broker.topic_config import SETTINGS
from headrace.doors.http.api.errors import bad_request
from headrace.doors.http.api.fields import Fields
from headrace.doors.http.api.handlers.topics import TOPIC_PATH, texts_of
from headrace.doors.http.api.operations import Operation
from headrace.doors.http.api.responses import Answer, Names
from headrace.doors.http.api.rights import on_topic
from headrace.doors.http.api.schemas import Named, array, flag, mapping, nullable, object_of, text
from headrace.doors.http.server.messages import Request
from headrace.errors import InvalidTopic, InvalidTopicConfig, UnknownTopic

SETTING = Named(
    "TopicSetting",
    object_of(
        {
            "name": text(),
            "value": text(),
            "default": text("What counts for topics without a value of their own."),
            "source": text("Who has set it.", ("topic", "broker", "default")),
            "type": text(choices=("boolean", "string", "int", "long", "double", "list")),
            "doc": text(),
            "choices": array(text(), "The values that there are; none: any of its type that its documentation allows."),
            "honoured": flag("Whether it changes what Headrace does, or is only known for Kafka's clients."),
        }
    ),
)
SETTINGS_ANSWER = object_of({"settings": array(SETTING)})


@Operation(
    "GET",
    "/v1/topic-settings",
    "Lists the settings that topics can have, with the broker's defaults.",
    rights=Open("tells what there is to set, and nothing that is kept"),
    answer=SETTINGS_ANSWER,
)
async def list_topic_settings(broker: Broker, request: Request, names: Names) -> Answer:
    return {"settings": described(broker, {})}


@Operation(
    "GET",
    TOPIC_PATH + "/settings",
    "Shows the settings of a topic.",
    rights=on_topic(Right.DESCRIBE_CONFIGS),
    answer=SETTINGS_ANSWER,
    errors=(UnknownTopic,),
    command="topic config TOPIC",
)
async def show_topic_settings(broker: Broker, request: Request, names: Names) -> Answer:
    return {"settings": described(broker, broker.topics.existing(names["topic"]).config)}


@Operation(
    "PATCH",
    TOPIC_PATH + "/settings",
    "Changes the settings of a topic that are given. They take effect at once.",
    rights=on_topic(Right.ALTER_CONFIGS),
    body=object_of(
        {},
        {
            "settings": mapping(nullable(text()), "By name; null: the broker's default again."),
            "dry_run": flag("Only judge the change, and show it."),
        },
    ),
    answer=object_of(
        {
            "changed": array(object_of({"name": text(), "before": text(), "after": text()})),
            "settings": array(SETTING),
            "dry_run": flag(),
        }
    ),
    errors=(UnknownTopic, InvalidTopic, InvalidTopicConfig),
    command="topic config TOPIC",
)
async def change_topic_settings(broker: Broker, request: Request, names: Names) -> Answer:
    fields = Fields.of_body(request.body)
    given = fields.object("settings")
    dry_run = fields.flag("dry_run")
    fields.end()
    unset = {name for name, value in given.items() if value is None}
    if unknown := [name for name in sorted(unset) if name not in SETTINGS]:
        raise bad_request(f"there is no topic setting {unknown[0]!r}")
    wanted = texts_of({name: value for name, value in given.items() if value is not None})

    def change(own: Mapping[str, str]) -> Mapping[str, str]:
        return {**{name: value for name, value in own.items() if name not in unset}, **wanted}

    topic = broker.topics.existing(names["topic"])
    before = topic.config
    after = broker.topics.check_config(topic.name, change)
    if not dry_run:
        after = dict((await broker.topics.alter_config(topic.name, change, request.session)).config)
    old, new = _values(broker, before), _values(broker, after)
    return {
        "changed": [
            {"name": name, "before": old[name], "after": new[name]} for name in SETTINGS if old[name] != new[name]
        ],
        "settings": described(broker, after),
        "dry_run": dry_run,
    }


def _values(broker: Broker, own: Mapping[str, str]) -> dict[str, str]:
    return {name: own.get(name, _default(broker, setting)) for name, setting in SETTINGS.items()}


def _default(broker: Broker, setting: Setting) -> str:
    dynamic = broker.topics.defaults.get(setting.name)
    return setting.default_in(broker.config) if dynamic is None else dynamic


def described(broker: Broker, own: Mapping[str, str]) -> list[dict[str, Any]]:
    """All settings, for a topic with these of its own."""
    return [_describe(broker, setting, own.get(setting.name)) for setting in SETTINGS.values()]


def _describe(broker: Broker, setting: Setting, own: str | None) -> dict[str, Any]:
    default = _default(broker, setting)
    by_broker = setting.name in broker.topics.defaults or set_by_operator(setting, broker.config)
    return {
        "name": setting.name,
        "value": default if own is None else own,
        "default": default,
        "source": "topic" if own is not None else "broker" if by_broker else "default",
        "type": setting.kind.name.lower(),
        "doc": setting.doc,
        "choices": list(setting.choices),
        "honoured": setting.honoured,
    }
