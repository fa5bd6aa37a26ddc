"""The whole broker, with Kafka clients."""
