"""The framework that applications import: `App`, what handlers get, and the outcomes they return.

app.py            the application: what it reads, what it sends, its life; blocking.py: its sync facade
scenario.py       what a service needs, in one word, and the values that follow from it
declarations.py   subscriptions and topics as the application declares them; handler.py: how a function is called
payload.py        between bytes and what a handler takes
runner.py         a subscription at work: workers, order by key, settling; batch_runner.py: for handlers of lists
leases.py         visibility timeouts of messages that are being handled
send_buffer.py    messages that wait to be sent
system.py         which system a URL names, and whether it suits
transport.py      what a messaging system must do; kafka.py and nsq.py are the two, memory.py is one for tests
puller.py         a Kafka consumer in a thread; fetched_batch.py: what it fetched; retry_topic.py: messages to retry
exactly_once.py   chunks of messages, each with what was sent for it in one transaction; transaction_buffer.py: those
observer.py       what is seen from outside: logs.py, metrics.py, tracing.py, spans.py
registry.py       applications and instances, in a compacted topic; live.py: an instance that follows it
settings.py       what can be changed while an application runs
testing.py        the harness for users' tests
asyncapi.py       what an application reads and sends, as a document; schema.py: its payloads
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
