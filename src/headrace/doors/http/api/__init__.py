"""The HTTP door: health, metrics, a page that says what this is, and the management of queues in JSON."""
