"""Webhooks: a queue that is pushed by HTTP POST, signed; and what its receivers need.

signature.py  signing and verifying, by the Standard Webhooks scheme; nothing but the standard library
event.py      a message as a CloudEvent over HTTP
endpoint.py   one URL: a POST, and what its answer means
targets.py    where requests may go: not into the private network around
breaker.py    the circuit breaker of an endpoint
hook.py       what one URL is given, and how
pusher.py     an application of the framework whose handlers push
figures.py    what is seen of it from outside

Receivers import `headrace.webhooks.verify`, which needs no extra; `headrace subscribe` needs `webhooks`.
"""

from headrace.webhooks.signature import InvalidSignature, new_secret, sign, verify

__all__ = ["InvalidSignature", "new_secret", "sign", "verify"]
