"""What the broker keeps for RocketMQ's clients in `__rocketmq`: physical offsets, configuration, settings of groups."""

from headrace.broker.rocketmq.state import RocketMqState

__all__ = ["RocketMqState"]
