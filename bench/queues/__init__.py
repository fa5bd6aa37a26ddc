"""Queues measured beside RabbitMQ, and nsqd where there is one: publish, deliver, acknowledge. See ../README.md."""
