"""The console: what people look at, and are alerted by. `headrace console`, a process of its own.

It is a client like any other: it knows brokers by their REST API alone. `client/` calls that API, `figures/` samples
each broker once for all watchers and keeps the history, `alerts/` decides and notifies, `pages/` show and act as the
user who is logged in, with the parts in `ui/`.
"""
