"""Settings in Kafka's terms: what a topic, the broker, its logger and a group are set to, where each value comes from,
and how it is changed.

A topic's values come from the topic itself, from the broker's settings that were changed at run time (for this broker
or for all), from what the operator configured, or from Headrace's defaults. The settings of the broker and of this
door are fixed while it runs, and are read-only, but for the defaults of topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.addresses import format_address
from headrace.broker import security
from headrace.broker.broker import Broker
from headrace.broker.dynamic_config import DYNAMIC, Scope
from headrace.broker.groups.consumer.settings import SETTINGS as GROUP_SETTINGS
from headrace.broker.security import Operation
from headrace.broker.security.rights import CLUSTER_NAME
from headrace.broker.setting_kinds import BROKER_DEFAULTS, Kind, Setting, set_by_operator
from headrace.broker.settings import BrokerSettings
from headrace.broker.topic_config import SETTINGS
from headrace.doors.door import DoorContext
from headrace.doors.kafka.call import Call
from headrace.doors.kafka.errors import KafkaError
from headrace.doors.kafka.placement import Way
from headrace.doors.kafka.settings import MAIN, KafkaSettings, Listener, listeners_of
from headrace.logs import level

Change = Callable[[Mapping[str, str]], Mapping[str, str]]


class Resource(IntEnum):
    """What can have settings, by Kafka's number."""

    GROUP = 32
    CLIENT_METRICS = 16
    BROKER_LOGGER = 8
    BROKER = 4
    TOPIC = 2


class Source(IntEnum):
    """Where a value comes from, by Kafka's number."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_ALL_BROKERS = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


Dynamic = Sequence[tuple["Source", Mapping[str, str]]]
"""The broker's settings that were changed at run time, those that come first in front."""


def dynamic_of(broker: Broker) -> Dynamic:
    """What the group is set to, and what was changed on this broker at run time, and on all."""
    return (
        (Source.DYNAMIC_ALL_BROKERS, _of_group(broker)),
        (Source.DYNAMIC_BROKER, broker.dynamic.of(Scope.BROKER, str(broker.node_id))),
        (Source.DYNAMIC_ALL_BROKERS, broker.dynamic.of(Scope.BROKER, "")),
    )


def _of_group(broker: Broker) -> Mapping[str, str]:
    """What counts for all topics of a group of nodes, by Kafka's names; a topic's own value does not."""
    group = broker.membership
    if len(group.replicas) == 1:
        return {}
    return {
        "min.insync.replicas": str(group.min_isr),
        "unclean.leader.election.enable": str(group.unclean).lower(),
    }


# Kafka's name of each setting that the broker or the door has, its field there, and the milliseconds in its unit.
_BROKER: tuple[tuple[str, str, int], ...] = (
    ("auto.create.topics.enable", "auto_create_topics", 1),
    ("broker.id", "node_id", 1),
    ("connections.max.idle.ms", "connections_idle_ms", 1),
    ("fetch.max.bytes", "fetch_max_bytes", 1),
    ("group.initial.rebalance.delay.ms", "group_initial_rebalance_delay_ms", 1),
    ("group.max.session.timeout.ms", "group_max_session_timeout_ms", 1),
    ("group.max.size", "group_max_size", 1),
    ("group.min.session.timeout.ms", "group_min_session_timeout_ms", 1),
    ("log.dirs", "data", 1),
    ("log.retention.check.interval.ms", "retention_check_ms", 1),
    ("max.connections", "connections_max", 1),
    ("max.incremental.fetch.session.cache.slots", "fetch_sessions_max", 1),
    ("node.id", "node_id", 1),
    ("num.partitions", "num_partitions", 1),
    ("offset.metadata.max.bytes", "offset_metadata_max_bytes", 1),
    ("offsets.retention.minutes", "offsets_retention_ms", 60_000),
    ("offsets.topic.num.partitions", "offsets_partitions", 1),
    ("socket.request.max.bytes", "request_max_bytes", 1),
)
# What is so for every Headrace.
_FIXED: tuple[tuple[str, Kind, str, str], ...] = (
    ("delete.topic.enable", Kind.BOOLEAN, "true", "Topics can be deleted."),
    ("log.cleaner.enable", Kind.BOOLEAN, "true", "Compaction runs."),
)
# Kafka's names for how many replicas there are.
_FACTORS = ("default.replication.factor", "offsets.topic.replication.factor")
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARN", "error": "ERROR"}


def topic_entries(broker: Broker, own: Mapping[str, str], names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The settings of a topic with these of its own; with `names`, those of them that exist."""
    of_group, dynamic = _of_group(broker), dynamic_of(broker)
    return [
        _own_entry(
            setting, None if setting.name in of_group else own.get(setting.name), Source.TOPIC, broker.config, dynamic
        )
        for setting in _select(SETTINGS, names)
    ]


def group_entries(
    own: Mapping[str, str], config: BrokerSettings, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """The settings of a group with these of its own; with `names`, those of them that exist."""
    return [
        _own_entry(setting, own.get(setting.name), Source.GROUP, config, ())
        for setting in _select(GROUP_SETTINGS, names)
    ]


def _select(settings: Mapping[str, Setting], names: Iterable[str] | None) -> list[Setting]:
    wanted = settings if names is None else set(names)
    return [setting for name, setting in settings.items() if name in wanted]


def _own_entry(
    setting: Setting, own: str | None, source: Source, config: BrokerSettings, dynamic: Dynamic
) -> dict[str, Any]:
    """A setting that a topic or a group may have of its own."""
    inherited = _broker_synonyms(setting, config, dynamic)
    counts = inherited[0] if own is None else _synonym(setting.name, own, source)
    synonyms = inherited if setting.broker_name or setting.config_field else []
    return _entry(setting.name, counts, synonyms if own is None else [counts, *synonyms], setting.kind, setting.doc)


def _broker_synonyms(setting: Setting, config: BrokerSettings, dynamic: Dynamic) -> list[dict[str, Any]]:
    """The broker's values of a setting, the one that counts first."""
    name = setting.broker_name or setting.name
    default = setting.default_in(BROKER_DEFAULTS)
    synonyms = [_synonym(name, values[name], source) for source, values in dynamic if name in values]
    if set_by_operator(setting, config):
        synonyms.append(_synonym(name, setting.default_in(config), Source.STATIC_BROKER))
    return [*synonyms, _synonym(name, default, Source.DEFAULT)]


def _synonym(name: str, value: str, source: Source) -> dict[str, Any]:
    return {"name": name, "value": value, "source": source}


def _entry(
    name: str,
    counts: Mapping[str, Any],
    synonyms: Sequence[Mapping[str, Any]],
    kind: int,
    doc: str,
    read_only: bool = False,
) -> dict[str, Any]:
    """A setting in a reply; `counts` is the synonym with the value in effect."""
    return {
        "name": name,
        "value": counts["value"],
        "read_only": read_only,
        "config_source": counts["source"],
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": kind,
        "documentation": doc,
    }


def broker_entries(
    context: DoorContext[KafkaSettings], way: Way, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """The settings of the broker and of this door under Kafka's names; with `names`, those of them that exist."""
    broker = context.broker
    listeners = listeners_of(context.settings, has_certificate=context.tls is not None)
    open_ones = [each for each in listeners if each.address != "off"]
    sent_to = {
        each: format_address(way.host, way.port) if each.name == way.listener else each.advertised or each.address
        for each in open_ones
    }
    entries = [
        _broker_entry("advertised.listeners", Kind.LIST, _join_places(sent_to), "", "Where clients are sent."),
        _broker_entry(
            "listener.security.protocol.map",
            Kind.LIST,
            ",".join(f"{_title(each)}:{each.protocol}" for each in open_ones),
            "",
            "How clients speak at each listener.",
        ),
        _broker_entry(
            "listeners",
            Kind.LIST,
            _join_places({each: each.address for each in open_ones}),
            "",
            "Where the Kafka door listens.",
        ),
    ]
    entries += [_broker_entry(name, kind, value, value, doc) for name, kind, value, doc in _FIXED]
    group = broker.membership
    copies = str(len(group.replicas))
    entries += [_broker_entry(name, Kind.INT, copies, copies, "Each node of the group has one.") for name in _FACTORS]
    if len(group.replicas) > 1:
        doc = "What a follower may lack something for before it leaves the ISR (`headrace cluster set`)."
        entries.append(_broker_entry("replica.lag.time.max.ms", Kind.LONG, str(group.lag_ms), "30000", doc))
    parts = (broker.config, context.shared, context.settings)
    settings = {field.name: (field, getattr(part, field.name)) for part in parts for field in fields(part)}
    for name, field_name, unit in _BROKER:
        field, value = settings[field_name]
        now, default = _text(value, unit), _text(field.default, unit)
        entries.append(_broker_entry(name, _kind(name, field.default), now, default, field.metadata["help"]))
    dynamic = dynamic_of(broker)
    for name, setting in DYNAMIC.items():
        synonyms = _broker_synonyms(setting, broker.config, dynamic)
        entries.append(_dynamic_entry(name, setting, synonyms))
    wanted = None if names is None else set(names)
    return sorted(
        (entry for entry in entries if wanted is None or entry["name"] in wanted), key=lambda entry: str(entry["name"])
    )


def _title(listener: Listener) -> str:
    """The name of a listener as Kafka writes it: where there is only one, its protocol."""
    return listener.protocol if listener.name == MAIN else listener.name.removeprefix(f"{MAIN}-").upper()


def _join_places(places: Mapping[Listener, str]) -> str:
    return ",".join(f"{_title(each)}://{place}" for each, place in places.items())


def all_brokers_entries(broker: Broker, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The settings that were changed at run time for all brokers."""
    values = broker.dynamic.of(Scope.BROKER, "")
    return [
        _dynamic_entry(name, DYNAMIC[name], [_synonym(name, text, Source.DYNAMIC_ALL_BROKERS)])
        for name, text in sorted(values.items())
        if names is None or name in names
    ]


def _dynamic_entry(name: str, setting: Setting, synonyms: list[dict[str, Any]]) -> dict[str, Any]:
    """A setting of the broker that can change while it runs."""
    return _entry(name, synonyms[0], synonyms, setting.kind, setting.doc)


def _text(value: object, unit: int) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value // unit) if isinstance(value, int) else str(value)


def _kind(name: str, default: object) -> Kind:
    if isinstance(default, bool):
        return Kind.BOOLEAN
    if isinstance(default, str):
        return Kind.LIST
    return Kind.LONG if name.endswith(".ms") else Kind.INT


def _broker_entry(name: str, kind: Kind, value: str, default: str, doc: str) -> dict[str, Any]:
    counts = _synonym(name, value, Source.DEFAULT if value == default else Source.STATIC_BROKER)
    synonyms = [_synonym(name, default, Source.DEFAULT)] if default else []
    return _entry(name, counts, synonyms if value == default else [counts, *synonyms], kind, doc, read_only=True)


def logger_entries(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The level of the one logger."""
    if names is not None and "root" not in names:
        return []
    return [_entry("root", _synonym("root", _LEVELS[level()], Source.LOGGER), [], 0, "", read_only=True)]


def check_node(name: str, node_id: int, expected: str) -> None:
    """Refuse a broker resource that is not this node."""
    try:
        given = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.invalid_request, f"a broker is named by its number (got '{name}')") from None
    if given != node_id:
        raise KafkaError(ErrorCode.invalid_request, f"this is broker {node_id}, not {name}: ask it about {expected}")


def value_of(broker: Broker, kind: int, name: str) -> str | None:
    """What counts for a list setting of a resource that does not have its own; None for any other setting."""
    table = {Resource.TOPIC: SETTINGS, Resource.BROKER: DYNAMIC}.get(Resource(kind), {})
    setting = table.get(name)
    if setting is None or setting.kind is not Kind.LIST:
        return None
    return str(_broker_synonyms(setting, broker.config, dynamic_of(broker))[0]["value"])


def check_right(call: Call, operation: Operation, resource: Any) -> None:
    """Raise NotAuthorized for a client that has no right to see, or to change, the settings of a resource."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == Resource.TOPIC:
        call.check(operation, security.Resource.TOPIC, name)
    elif kind == Resource.GROUP:
        call.check(operation, security.Resource.GROUP, name)
    else:
        call.check(operation, security.Resource.CLUSTER, CLUSTER_NAME)


async def alter(call: Call, resource: Any, change: Change, validate_only: bool) -> None:
    """Change the settings of one resource of AlterConfigs or IncrementalAlterConfigs."""
    check_right(call, Operation.ALTER_CONFIGS, resource)
    broker = call.broker
    kind, name = resource.resource_type, resource.resource_name
    keys = [config.name for config in resource.configs]
    if len(set(keys)) != len(keys):
        raise KafkaError(ErrorCode.invalid_request, "a setting occurs more than once in the request")
    if kind == Resource.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "settings are changed topic by topic: name one")
        if validate_only:
            broker.topics.check_config(name, change)
        else:
            await broker.topics.alter_config(name, change, call.session)
    elif kind == Resource.BROKER:
        if name:
            check_node(name, broker.node_id, "itself")
        # By the number as it is written elsewhere: "01" is the same broker.
        whose = str(broker.node_id) if name else ""
        await broker.dynamic.alter(Scope.BROKER, whose, change, validate_only=validate_only, session=call.session)
    elif kind == Resource.GROUP:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "settings are changed group by group: name one")
        await broker.dynamic.alter(Scope.GROUP, name, change, validate_only=validate_only, session=call.session)
    elif kind == Resource.BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.invalid_request,
            "the level of the logger cannot be changed over Kafka. Set log_level at the start, or by PUT "
            "/config/log_level on the NSQ door's HTTP side.",
        )
    else:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"resources of type {kind} have no settings here: topics, groups and brokers have",
        )
