"""Settings that are changed while the broker runs: of single groups, and of the broker itself.

They stand in `__configs`, a compacted topic of one partition: a record for each group or broker that has any, with all
of them. A change is durable before it takes effect, and is there again after a start, before groups and topics are
looked at. The broker's settings that can change so are the defaults of its topics, and some of the log's; those under
the empty name are for all brokers, those under a number come before them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from headrace.broker.groups.consumer.settings import clean_group
from headrace.broker.setting_kinds import Kind, Setting, at_least, clean_value
from headrace.broker.settings import BrokerSettings
from headrace.broker.store import StateTopic
from headrace.broker.topic_config import SETTINGS
from headrace.broker.topics import Topics
from headrace.errors import HeadraceError, InvalidBrokerConfig, InvalidGroupConfig, InvalidTopicConfig
from headrace.format.batch import BatchHeader
from headrace.format.records import Record
from headrace.log.local import LocalLog
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.security import Session

logger = structlog.get_logger("headrace.configs")

TOPIC = "__configs"
TOPIC_CONFIG = {"cleanup.policy": "compact", "durability": "sync", "segment.bytes": str(16 << 20)}
# Groups that may have settings of their own.
GROUPS_MAX = 10_000
NAME_CHARACTERS_MAX = 8_191

Values = Mapping[str, str]
Change = Callable[[Values], Values]
NOTHING: Values = {}

_HELP = {each.name: each.metadata["help"] for each in fields(BrokerSettings)}
OF_TOPICS: Mapping[str, Setting] = {each.broker_name: each for each in SETTINGS.values() if each.broker_name}
"""The broker's settings that are defaults of topics, by Kafka's names for them."""
OF_LOG: Mapping[str, Setting] = {
    name: Setting(name, kind, "", _HELP[field], at_least(1), field, name)
    for name, kind, field in (
        ("log.cleaner.backoff.ms", Kind.LONG, "compaction_check_ms"),
        ("producer.id.expiration.ms", Kind.INT, "producer_id_expiration_ms"),
    )
}
"""Those that the log goes by in its background work."""
DYNAMIC: Mapping[str, Setting] = {**OF_TOPICS, **OF_LOG}


class Scope(StrEnum):
    """What has settings here."""

    BROKER = "broker"
    GROUP = "group"


class DynamicConfig:
    """All of these settings."""

    def __init__(self, runtime: Runtime, log: LocalLog, topics: Topics, config: BrokerSettings) -> None:
        self._log = log
        self._topics = topics
        self._config = config
        self._stored = StateTopic(runtime, log, topics, config, TOPIC, TOPIC_CONFIG)
        self._values: dict[Scope, dict[str, Values]] = {scope: {} for scope in Scope}
        self.on_altered: list[Callable[[Session | None, str, str, str], None]] = []
        """Called with who has changed settings (None: the broker by itself), of what, its name, and which."""
        self._changing = asyncio.Lock()
        self._loaded = False

    async def start(self) -> None:
        """Read what was set; topics are not looked at yet."""
        try:
            await self._load()
        except HeadraceError as error:
            logger.error("settings that were changed at run time cannot be read: the others count", error=str(error))

    def of(self, scope: Scope, name: str) -> Values:
        """What is set for one group or broker."""
        return self._values[scope].get(name, NOTHING)

    def of_group(self, group_id: str) -> Values:
        return self._values[Scope.GROUP].get(group_id, NOTHING)

    def names(self, scope: Scope) -> list[str]:
        """What has settings."""
        return sorted(self._values[scope])

    async def alter(
        self, scope: Scope, name: str, change: Change, *, validate_only: bool = False, session: Session | None = None
    ) -> None:
        """Change settings: `change` takes those that are set and returns those that shall be. Raises
        InvalidGroupConfig or InvalidBrokerConfig, and what the log raises."""
        async with self._changing:
            if not self._loaded:
                await self._load()
            cleaned = await self._clean(scope, name, change(self.of(scope, name)))
            if validate_only or cleaned == self.of(scope, name):
                return
            before = self.of(scope, name)
            await self._store(scope, name, cleaned)
            self._apply(scope, name, cleaned)
            changed = sorted(key for key in {*before, *cleaned} if before.get(key) != cleaned.get(key))
            for call in self.on_altered:
                call(session, scope, name, " ".join(changed))
            if scope is Scope.BROKER:
                self._tune()
                await self._topics.follow(self._defaults())

    async def _clean(self, scope: Scope, name: str, values: Values) -> Values:
        if scope is Scope.GROUP:
            if len(name) > NAME_CHARACTERS_MAX:
                raise InvalidGroupConfig(f"a group's name has at most {NAME_CHARACTERS_MAX} characters")
            if name not in self._values[scope] and len(self._values[scope]) >= GROUPS_MAX:
                raise InvalidGroupConfig(f"{GROUPS_MAX} groups have settings of their own already: delete some")
            return clean_group(values, self._config)
        unknown = [key for key in values if key not in DYNAMIC]
        if unknown:
            raise InvalidBrokerConfig(
                f"cannot be changed while the broker runs: {', '.join(unknown)}. Set them where it is started"
            )
        try:
            cleaned = {key: clean_value(DYNAMIC[key], text) for key, text in values.items()}
            await self._topics.check_defaults(self._defaults(name, cleaned))
        except InvalidTopicConfig as error:
            raise InvalidBrokerConfig(str(error)) from None
        return cleaned

    def _defaults(self, name: str | None = None, values: Values = NOTHING) -> Values:
        """The defaults of topics, with other values for one name."""
        both = {each: self.of(Scope.BROKER, each) for each in ("", str(self._config.node_id))}
        if name is not None:
            both[name] = values
        return {OF_TOPICS[key].name: text for each in both.values() for key, text in each.items() if key in OF_TOPICS}

    def _tune(self) -> None:
        values = {**self.of(Scope.BROKER, ""), **self.of(Scope.BROKER, str(self._config.node_id))}
        self._log.tune(
            **{each.config_field: int(values.get(name, each.default_in(self._config))) for name, each in OF_LOG.items()}
        )

    # --- the topic ----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        topic = self._stored.topic
        if topic is not None:
            await self._stored.load(topic.partitions[0], self._take)
        self._topics.set_defaults(self._defaults())
        if self._values[Scope.BROKER]:
            self._tune()
        self._loaded = True

    def _take(self, record: Record, header: BatchHeader) -> None:
        _, _, key, value, _ = record
        scope, _, name = (key or b"").decode().partition(":")
        self._apply(Scope(scope), name, json.loads(value) if value is not None else NOTHING)

    def _apply(self, scope: Scope, name: str, values: Values) -> None:
        if values:
            self._values[scope][name] = values
        else:
            self._values[scope].pop(name, None)

    async def _store(self, scope: Scope, name: str, values: Values) -> None:
        topic = await self._stored.open()
        await topic.partitions[0].load()
        value = json.dumps(dict(values), separators=(",", ":")).encode() if values else None
        await self._stored.submit([self._stored.write(topic.partitions[0], [(f"{scope}:{name}".encode(), value)])])
