"""The framework that applications import: `App`, and what handlers get and say.

app.py        the application: what it reads, what it sends, its life; blocking.py: its sync face
scenario.py   what a service needs, in one word, and the values that follow from it
handler.py    how a function wants to be called
payload.py    between bytes and what a handler wants
running.py    a subscription at work: workers, order by key, settling
sending.py    the local send queue
system.py     which system a URL names, and whether it suits
exactly_once.py  chunks of messages, each with what was sent for it in one transaction; gathering.py: what waits for it
observer.py   what is seen from outside: logs.py, metrics.py, tracing.py, spans.py
transport.py  what is asked of a system that carries messages; kafka.py and nsq.py are the two, memory.py one for tests
registry.py   who is there, in a compacted topic; live.py: an instance that follows it; settings.py: what can be set
testing.py    the harness for users' tests
asyncapi.py   what an application reads and sends, as a document; schema.py: what its payloads are
"""

from headrace.sdk.app import App
from headrace.sdk.message import Message, Receipt
from headrace.sdk.outcome import Ack, Reject, Retry
from headrace.sdk.payload import BadPayload
from headrace.sdk.scenario import SCENARIOS, Scenario, Tuning
from headrace.sdk.system import Unsuited
from headrace.sdk.transport import PublishFailed, UnsupportedPublish

__all__ = [
    "SCENARIOS",
    "Ack",
    "App",
    "BadPayload",
    "Message",
    "PublishFailed",
    "Receipt",
    "Reject",
    "Retry",
    "Scenario",
    "Tuning",
    "Unsuited",
    "UnsupportedPublish",
]
