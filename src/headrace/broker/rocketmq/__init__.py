"""What the broker keeps for RocketMQ's clients in `__rocketmq`: physical offsets, the name server's configuration."""

from headrace.broker.rocketmq.state import RocketMqState

__all__ = ["RocketMqState"]
