"""RocketMQ's gRPC protocol (its proxy's) in front of the broker."""
