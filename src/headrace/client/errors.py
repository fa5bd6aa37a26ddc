"""The errors of the client.

An error that a broker answers is a `BrokerError` with Kafka's code; the others are about reaching a broker at all.
`retriable`: a retry, perhaps at another broker, may help.
"""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.format.error_codes import ErrorCode


class ClientError(HeadraceError):
    """The root of the client's errors."""

    retriable = False


class ConnectionLost(ClientError):
    """The connection broke, or could not be made; whether the broker handled what was under way is not known."""

    retriable = True


class RequestTimeout(ConnectionLost):
    """The broker did not answer in time. The connection is closed with it."""


class UnsupportedApi(ClientError):
    """The broker does not speak the version of an API that this client needs."""


class InvalidRequest(ClientError):
    """A request cannot be encoded in Kafka's protocol."""


class InvalidResponse(ClientError):
    """The broker's answer cannot be read."""


class NotKafka(InvalidResponse):
    """What answers at an address speaks another protocol."""

    def __init__(self, address: str, protocol: str) -> None:
        super().__init__(f"{address} answers {protocol}, not Kafka")


class ClientClosed(ClientError):
    """The client was closed while something was still under way."""


class AuthenticationError(ClientError):
    """The client cannot show the broker who it is, or the broker cannot show the client that it is the right one."""


class BrokerError(ClientError):
    """The broker answered an error. `error` is Kafka's code; the text names what it is about."""

    def __init__(self, error: ErrorCode, on: str, message: str | None = None, retriable: bool | None = None) -> None:
        super().__init__(f"{on}: {message or error.name.replace('_', ' ')} ({error.name.upper()}, {int(error)})")
        self.error = error
        self.retriable = error.retriable if retriable is None else retriable


class RecordTooLarge(ClientError):
    """A record alone makes a batch that is larger than its topic allows. `index` is its place among those given."""

    def __init__(self, topic: str, index: int, size: int, limit: int) -> None:
        super().__init__(
            f"{topic} takes messages of up to {limit} bytes (max.message.bytes), and this one needs {size}"
        )
        self.index = index


class TransactionError(ClientError):
    """A transactional producer cannot continue: create a new one, unless a subclass has another way."""


class ProducerFenced(TransactionError):
    """Another producer has taken the transactional id, or the broker aborted the transaction because it took too long.

    For good: its open transaction is aborted, and it can do nothing more.
    """


class TransactionAbortable(TransactionError):
    """Something of the transaction failed: it can only be aborted. After `abort()` the producer is as good as new."""


class TransactionUnresolved(TransactionError):
    """Whether the transaction was committed (or aborted) is not known: call the same method again."""

    retriable = True


def error_code(number: int) -> ErrorCode:
    """The code for a number, even one that is newer than this client."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.unknown_server_error


def check(number: int, on: str, message: str | None = None) -> None:
    """Raise the error that a reply carries, if it carries one."""
    if number:
        raise BrokerError(error_code(number), on, message)
