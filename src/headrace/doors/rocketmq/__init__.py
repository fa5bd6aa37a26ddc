"""The RocketMQ door: `namesrv/` and `remoting/`, and what they share: frames, the formats of messages, names."""
