"""The HTTP door: `server/` speaks HTTP/1.1 for every door that needs it, `api/` is the broker's own REST API."""
