"""nsqd's HTTP API: its routes, and the handlers that do more than pass a request on to the broker."""
