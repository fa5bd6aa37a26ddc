"""RocketMQ's broker: what producers and consumers ask of it."""
