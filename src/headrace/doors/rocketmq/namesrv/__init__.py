"""RocketMQ's name server: where topics and brokers are."""
