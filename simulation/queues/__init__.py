"""Log and broker, with queues and their consumers."""
