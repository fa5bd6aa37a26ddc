"""Topics: which names may be, who makes them, and what changes when their settings do.

The log keeps the catalogue; this judges what goes into it. Everything that changes a topic holds that topic's turn
while it awaits the log, so two creations of one name give one topic and one TopicExists, and a deletion waits for
the creation before it. Names that differ only in `.` and `_` share a turn, because they may not both exist: Kafka's
metric names cannot have both.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.broker import internal as own
from headrace.broker import topic_config
from headrace.broker.internal import CLUSTER_METADATA, REGISTRY, REGISTRY_CONFIG, check_change, is_internal
from headrace.broker.settings import BrokerSettings
from headrace.broker.turns import Turns
from headrace.errors import (
    InvalidPartitions,
    InvalidTopic,
    InvalidTopicConfig,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from headrace.log.interface import Durability, Log, Topic, TopicSettings

if TYPE_CHECKING:
    from headrace.broker.security import Session

logger = structlog.get_logger("headrace.topics")

NAME_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
# Settings that decide what a topic takes and keeps. The state in the broker's own topics depends on theirs: defaults
# that were set for all topics are not for these.
KEEPING = frozenset(
    (
        *("cleanup.policy", "retention", "retention.ms", "retention.bytes", "retention.archive.group", "lake"),
        *("overflow", "overflow.bytes", "delay", "deduplication.window.ms", "max.message.bytes"),
        *("message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
    )
)
Complete = Callable[[Topic], Awaitable[None]]
"""Makes what belongs to a new topic from its first message on."""
Prepare = Callable[[str], Awaitable[Complete | None]]
"""From the name of a topic that is about to be made to what completes it."""
# Topics that are looked at in one turn of the loop where all are: about a millisecond.
TOPICS_A_TURN = 64


def check_name(name: str) -> None:
    """Raise InvalidTopic unless the name may be a topic's."""
    if not name:
        raise InvalidTopic("a topic's name must not be empty")
    if name in (".", ".."):
        raise InvalidTopic(f"'{name}' cannot be a topic's name: it means a folder. Choose another.")
    if len(name) > NAME_MAX:
        raise InvalidTopic(
            f"a topic's name must have at most {NAME_MAX} characters (got {len(name)}: '{name[:40]}...')"
        )
    if not _LEGAL.match(name):
        raise InvalidTopic(f"a topic's name must consist of ASCII letters, digits, '.', '_' and '-' (got '{name}')")


class Topics:
    """The broker's topics."""

    def __init__(self, log: Log, config: BrokerSettings) -> None:
        self._log = log
        self._config = config
        # Called with a topic that is about to grow, and to how many partitions; may raise.
        self.growing: list[Callable[[Topic, int], None]] = []
        self.on_managed: list[Callable[[Session | None, str, str, str], None]] = []
        """Called with who has changed a topic (None: the broker by itself), how, its name, and more on it."""
        # Called with a topic that is new, has changed (its settings, its partitions, its queues), or is gone.
        self.changed: list[Callable[[Topic], None]] = []
        # Defaults of topics that were set while the broker runs.
        self._defaults: Mapping[str, str] = {}
        self.making: Callable[[Session | None], AbstractContextManager[None]] = lambda _: nullcontext()
        """Around the making of a topic, with who makes it; may raise."""
        self.prepare: Prepare | None = None
        """Asked for each topic that is about to be made, before any client can see it."""
        # Partitions of all topics, with those that are being made; None until first needed.
        self._total: int | None = None
        # By name with '.' as '_'.
        self._turns = Turns()
        # Names with a '.' or '_', by what they collide on; made when first needed, because the log may start later.
        self._colliding: dict[str, str] | None = None

    async def start(self) -> None:
        """Let topics follow the broker's defaults where these have changed since the last start."""
        await self._follow(lambda topic: None)

    def set_defaults(self, defaults: Mapping[str, str]) -> None:
        """The defaults that were set while the broker ran, before it starts."""
        self._defaults = defaults

    async def follow(self, defaults: Mapping[str, str]) -> None:
        """Let topics without settings of their own have these; takes effect at once."""
        self._defaults = defaults
        await self._follow(self.notify)

    async def check_defaults(self, defaults: Mapping[str, str]) -> None:
        """Raise InvalidTopicConfig if a topic could not follow."""
        for count, topic in enumerate(list(self._log.topics.values())):
            self._settings(topic.name, topic.config, defaults)
            if count % TOPICS_A_TURN == TOPICS_A_TURN - 1:
                await asyncio.sleep(0)

    def _settings(self, name: str, own: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> TopicSettings:
        """What the log acts on for a topic with these settings of its own."""
        given = self._defaults if defaults is None else defaults
        if is_internal(name):
            given = {key: value for key, value in given.items() if key not in KEEPING}
        return topic_config.settings_of(own, self._config, given)

    async def _follow(self, on_changed: Callable[[Topic], None]) -> None:
        names = list(self._log.topics)
        for first in range(0, len(names), TOPICS_A_TURN):
            turn = names[first : first + TOPICS_A_TURN]
            await asyncio.gather(*(self._follow_one(name, on_changed) for name in turn))

    async def _follow_one(self, name: str, on_changed: Callable[[Topic], None]) -> None:
        """Let one topic follow the defaults as they are now."""
        async with self._turns.of(_collision_key(name)):
            topic = self._log.topics.get(name)
            if topic is None:
                return
            try:
                settings = self._settings(name, topic.config)
            except InvalidTopicConfig as error:
                logger.error("a topic cannot follow the defaults: it stays as it is", topic=name, error=str(error))
                return
            if (settings.durability is Durability.MEMORY) != (topic.settings.durability is Durability.MEMORY):
                # What is on disk stays there, and what never was has no place on it.
                settings = replace(settings, durability=topic.settings.durability)
            if settings != topic.settings:
                on_changed(await self._log.alter(name, config=(topic.config, settings)))

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._log.topics.get(name)

    def existing(self, name: str) -> Topic:
        """The topic of that name. Raises UnknownTopic."""
        topic = self._log.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic '{name}'")
        return topic

    @property
    def defaults(self) -> Mapping[str, str]:
        """The defaults that were set while the broker runs."""
        return self._defaults

    @property
    def all(self) -> Mapping[str, Topic]:
        """Every topic, by name."""
        return self._log.topics

    @property
    def partitions_by_default(self) -> int:
        """How many a topic gets that is created without a number."""
        return self._config.num_partitions

    def check_new(
        self, name: str, partitions: int = -1, config: Mapping[str, str] | None = None, internal: bool = False
    ) -> dict[str, str]:
        """Judge a topic that is to be made; its settings as they would be stored. Raises what `create` would."""
        check_name(name)
        if (is_internal(name) and not internal) or name == CLUSTER_METADATA:
            raise InvalidTopic(f"the name '{name}' is reserved for the broker. Choose another.")
        if name == REGISTRY:
            own.check_new_registry(partitions, config or {})
            config = REGISTRY_CONFIG
        if name in self._log.topics:
            raise TopicExists(f"there is a topic '{name}' already")
        other = self._collision(name)
        if other is not None:
            raise InvalidTopic(
                f"'{name}' differs from the topic '{other}' only in '.' and '_', which names of metrics cannot "
                "tell apart: choose another"
            )
        if partitions == 0 or partitions < -1:
            raise InvalidPartitions(f"a topic must have 1 partition or more, or -1 for the default (got {partitions})")
        if not internal:
            count = self._count(name, partitions)
            self._check_count(count, count)
        cleaned = {key: topic_config.clean(key, value) for key, value in (config or {}).items()}
        self._settings(name, cleaned)
        return cleaned

    async def create(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        internal: bool = False,
        session: Session | None = None,
    ) -> Topic:
        """Make a topic; -1 partitions: as many as the broker's default. Raises InvalidTopic, TopicExists,
        InvalidPartitions, InvalidTopicConfig or BoundReached."""
        async with self._turns.of(_collision_key(name)):
            cleaned = self.check_new(name, partitions, config, internal)
            count = self._count(name, partitions)
            creating = asyncio.ensure_future(
                self._counted(count, self._create(name, count, cleaned, internal, session))
            )
            try:
                return await asyncio.shield(creating)
            except asyncio.CancelledError:
                # A caller that gives up, because its client has gone, leaves no half of a topic: one that is on the
                # disk and not in memory, or that lacks what belongs to it from its first message on.
                await asyncio.wait((creating,))
                if not creating.cancelled() and (error := creating.exception()) is not None:
                    logger.warning("a topic was not created, and its client has gone", topic=name, error=str(error))
                raise

    async def _create(
        self, name: str, partitions: int, config: Mapping[str, str], internal: bool, session: Session | None
    ) -> Topic:
        with self.making(None if internal else session):
            return await self._make(name, partitions, config, internal, session)

    async def _make(
        self, name: str, partitions: int, config: Mapping[str, str], internal: bool, session: Session | None
    ) -> Topic:
        complete = await self.prepare(name) if self.prepare is not None and not internal else None
        settings = self._settings(name, config)
        topic = await self._log.create(name, partitions, config, settings)
        if self._settings(name, config) != settings:
            # The defaults have changed meanwhile, for all topics that there were.
            topic = await self._log.alter(name, config=(config, self._settings(name, config)))
        if self._colliding is not None:
            self._colliding[_collision_key(name)] = name
        self.notify(topic)
        if not internal:
            self._managed(session, "create", name, f"{partitions} partitions{_names_of(config)}")
        if complete is not None:
            await complete(topic)
        return topic

    async def ensure(self, name: str, config: Mapping[str, str] | None = None, session: Session | None = None) -> Topic:
        """The topic, made with these settings and the defaults if it is missing and may be. Raises UnknownTopic or
        InvalidTopic."""
        topic = self._log.topics.get(name)
        if topic is not None:
            return topic
        check_name(name)
        if not self._config.auto_create_topics or is_internal(name) or name == CLUSTER_METADATA:
            raise UnknownTopic(f"there is no topic '{name}', and it is not made by naming it (auto_create_topics)")
        return await self.open(name, config=config, session=session)

    async def open(
        self,
        name: str,
        partitions: int = -1,
        config: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
        session: Session | None = None,
    ) -> Topic:
        """The topic, made with these settings if it is missing, whether naming it is enough or not: for what the broker
        itself writes to. Raises what `create` raises, and UnknownTopic."""
        topic = self._log.topics.get(name)
        if topic is not None:
            return topic
        try:
            return await self.create(name, partitions, config, internal, session)
        except TopicExists:
            # Another caller was first; unless it was deleted again since.
            topic = self._log.topics.get(name)
            if topic is None:
                raise UnknownTopic(f"topic '{name}' was deleted while it was being made") from None
            return topic

    async def delete(
        self, name: str, only: Topic | None = None, internal: bool = False, session: Session | None = None
    ) -> None:
        """Drop a topic and its data; with `only`, unless the name means another topic by now. Raises UnknownTopic or
        InvalidTopic."""
        async with self._turns.of(_collision_key(name)):
            topic = self.existing(name)
            if not internal:
                check_change(name, "deleted")
            if only is not None and topic is not only:
                raise UnknownTopic(f"there is no topic '{name}' with the id {only.id} any more")
            await self._log.delete(name)
            self._total = self.total - len(topic.partitions)
            if self._colliding is not None:
                self._colliding.pop(_collision_key(name), None)
            self.notify(topic)
        if not internal:
            self._managed(session, "delete", name)

    def check_growth(self, name: str, count: int) -> Topic:
        """Judge a growth to `count` partitions; the topic. Raises what `grow` would."""
        topic = self.existing(name)
        check_change(name, "given more partitions")
        now = len(topic.partitions)
        if count == now:
            raise InvalidPartitions(f"the topic '{name}' already has {count} partition(s)")
        if count < now:
            raise InvalidPartitions(
                f"the topic '{name}' has {now} partition(s) and cannot shrink to {count}: make another topic and copy"
            )
        self._check_count(count, count - now)
        for check in self.growing:
            check(topic, count)
        return topic

    async def grow(self, name: str, count: int, session: Session | None = None) -> Topic:
        """Give a topic more partitions, `count` in all. Raises UnknownTopic, InvalidTopic or InvalidPartitions."""
        async with self._turns.of(_collision_key(name)):
            now = len(self.check_growth(name, count).partitions)
            topic = await self._counted(count - now, self._log.alter(name, partitions=count))
            self.notify(topic)
            self._managed(session, "grow", name, f"from {now} to {count} partitions")
            return topic

    @property
    def total(self) -> int:
        """Partitions of all topics."""
        if self._total is None:
            self._total = sum(len(topic.partitions) for topic in self._log.topics.values())
        return self._total

    def _count(self, name: str, partitions: int) -> int:
        """How many partitions a new topic gets."""
        default = 1 if name == REGISTRY else self._config.num_partitions
        return default if partitions == -1 else partitions

    def _check_count(self, count: int, more: int) -> None:
        """Refuse a topic of `count` partitions, of which so many are new."""
        if count > self._config.partitions_max:
            raise InvalidPartitions(
                f"{count} partitions are more than the {self._config.partitions_max} that a topic may have here "
                "(partitions_max)"
            )
        if self.total + more > self._config.partitions_total_max:
            raise TooManyPartitions(
                f"the broker has {self.total} partitions, and {more} more would be above "
                f"{self._config.partitions_total_max} (partitions_total_max). Delete topics, or raise the limit."
            )

    def _counted(self, more: int, change: Awaitable[Topic]) -> Coroutine[object, object, Topic]:
        """Make a change that brings partitions: they count from now on, so that changes at once cannot pass the bound
        together."""
        self._total = self.total + more

        async def made() -> Topic:
            try:
                return await change
            except BaseException:
                # Counted anew when next asked for.
                self._total = None
                raise

        return made()

    def check_config(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> dict[str, str]:
        """Judge a change of settings; the topic's own as they would be stored. Raises what `alter_config` would."""
        check_name(name)
        topic = self.existing(name)
        cleaned = {key: topic_config.clean(key, value) for key, value in change(topic.config).items()}
        own.check_config(name, topic.config, cleaned)
        settings = self._settings(name, cleaned)
        if (settings.durability is Durability.MEMORY) != (topic.settings.durability is Durability.MEMORY):
            raise InvalidTopicConfig(
                f"durability cannot change from {topic.settings.durability.value} to {settings.durability.value}: "
                "make a new topic and copy"
            )
        return cleaned

    async def alter_config(
        self,
        name: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        session: Session | None = None,
    ) -> Topic:
        """Change a topic's own settings: `change` takes those it has and returns those it shall have, and is called
        when no other change is under way. Takes effect at once. Raises UnknownTopic or InvalidTopicConfig."""
        async with self._turns.of(_collision_key(name)):
            cleaned = self.check_config(name, change)
            before = self.existing(name).config
            topic = await self._log.alter(name, config=(cleaned, self._settings(name, cleaned)))
            self.notify(topic)
            changed = {key for key in {*before, *cleaned} if before.get(key) != cleaned.get(key)}
            self._managed(session, "alter", name, _names_of(changed).strip())
            return topic

    def _managed(self, session: Session | None, action: str, name: str, detail: str = "") -> None:
        for call in self.on_managed:
            call(session, action, name, detail)

    def notify(self, topic: Topic) -> None:
        """Call the listeners of topics: something about one has changed."""
        for call in self.changed:
            call(topic)

    def _collision(self, name: str) -> str | None:
        if "." not in name and "_" not in name:
            return None
        if self._colliding is None:
            self._colliding = {_collision_key(other): other for other in self._log.topics}
        return self._colliding.get(_collision_key(name))


def _names_of(settings: Iterable[str]) -> str:
    """The names of settings: a value may be secret."""
    return "".join(f" {name}" for name in sorted(settings))


def _collision_key(name: str) -> str:
    return name.replace(".", "_")
