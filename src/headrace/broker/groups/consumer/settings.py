"""What can be set for a single group of the consumer protocol; where nothing is, the broker's configuration counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.setting_kinds import INT_MAX, Kind, Setting, clean_value
from headrace.broker.settings import BrokerSettings
from headrace.errors import InvalidGroupConfig, InvalidTopicConfig

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
ASSIGNMENT_MAX_MS = 15_000

SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            ASSIGNMENT,
            Kind.INT,
            "0",
            "How long a group gathers changes before its partitions are divided anew; 0: not at all.",
        ),
        Setting(
            HEARTBEAT,
            Kind.INT,
            "",
            "How often the group's members send heartbeats.",
            config_field="group_consumer_heartbeat_interval_ms",
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
        Setting(
            SESSION,
            Kind.INT,
            "",
            "The silence after which a member is out of the group.",
            config_field="group_consumer_session_timeout_ms",
            broker_name="group.consumer.session.timeout.ms",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings that count for a group, in milliseconds."""

    session_ms: int
    heartbeat_ms: int
    assignment_ms: int = 0


def group_settings(own: Mapping[str, str], config: BrokerSettings) -> GroupSettings:
    """What counts for a group with these settings of its own."""
    values = {name: int(own.get(name, setting.default_in(config))) for name, setting in SETTINGS.items()}
    return GroupSettings(values[SESSION], values[HEARTBEAT], values[ASSIGNMENT])


def clean_group(own: Mapping[str, str], config: BrokerSettings) -> dict[str, str]:
    """A group's own settings as they are stored. Raises InvalidGroupConfig."""
    cleaned = {}
    for name, text in own.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise InvalidGroupConfig(f"there is no group setting '{name}': set one of {', '.join(SETTINGS)}")
        try:
            cleaned[name] = clean_value(setting, text)
        except InvalidTopicConfig as error:
            raise InvalidGroupConfig(str(error)) from None
    bounds = {
        SESSION: (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms),
        HEARTBEAT: (1, INT_MAX),
        ASSIGNMENT: (0, ASSIGNMENT_MAX_MS),
    }
    for name, value in cleaned.items():
        least, most = bounds[name]
        if not least <= int(value) <= most:
            raise InvalidGroupConfig(f"{name} cannot be {value}: it must be {least} to {most}")
    counting = group_settings(cleaned, config)
    if counting.heartbeat_ms >= counting.session_ms:
        raise InvalidGroupConfig(
            f"{HEARTBEAT} ({counting.heartbeat_ms}) is not below {SESSION} ({counting.session_ms}): "
            "lower the former or raise the latter"
        )
    return cleaned
