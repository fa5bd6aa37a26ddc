"""A handler: what an application wrote, and how it wants to be called.

Its parameters say it. The first is the payload, decoded to its annotation; one of type `Message` is the message itself;
`list[...]` of either asks for batches; a type for which the application provides a value is given that value.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import structlog

from headrace.sdk.message import Message
from headrace.sdk.outcome import Ack, Outcome
from headrace.sdk.payload import Decoder, decoder

log = structlog.get_logger("headrace.sdk")


class Handler:
    """One function of the application."""

    def __init__(self, function: Callable[..., Any], provided: Sequence[type]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.batches = False
        self.payload: Any = None
        """What the value of a message is decoded to; None where no parameter takes it."""
        self._asynchronous = inspect.iscoroutinefunction(function)
        self._payload = ""
        self._decode: Decoder = bytes
        self._message = ""
        self._given: dict[str, type] = {}
        # Whether it was logged that its return value is.
        self._ignored = False
        self._read_signature(provided)

    def _read_signature(self, provided: Sequence[type]) -> None:
        hints = typing.get_type_hints(self.function)
        for name, parameter in inspect.signature(self.function).parameters.items():
            wanted = hints.get(name, bytes if parameter.annotation is inspect.Parameter.empty else parameter.annotation)
            if wanted in provided:
                self._given[name] = wanted
                continue
            several = typing.get_origin(wanted) is list
            inner = typing.get_args(wanted)[0] if several else wanted
            if inner is Message and not self._message:
                self._message = name
            elif not self._payload:
                self._payload = name
                self.payload = inner
                self._decode = decoder(inner)
            elif parameter.default is inspect.Parameter.empty:
                raise TypeError(
                    f"{self.name} wants {name}: {wanted!r}, which nothing provides: the payload is {self._payload!r}; "
                    "give further types to App.provide"
                )
            else:
                continue
            if (self._message and self._payload) and several != self.batches:
                raise TypeError(f"{self.name} wants one message and a list at once: make both a list, or neither")
            self.batches = several

    def decode(self, message: Message) -> Any:
        """The payload of a message. Raises BadPayload."""
        return self._decode(message.value) if self._payload else None

    def decode_all(self, values: list[bytes]) -> list[Any]:
        """The payloads of several messages. Raises BadPayload if one is bad."""
        if not self._payload or self._decode is bytes:
            return values
        return [self._decode(value) for value in values]

    async def call(
        self, messages: Sequence[Message], payloads: list[Any], given: Mapping[type, Any], threads: Executor
    ) -> Outcome:
        """Call it with one message, or with a batch; its outcome. Raises what it raises, except outcomes."""
        arguments: dict[str, Any] = {name: given[kind] for name, kind in self._given.items()}
        if self._payload:
            arguments[self._payload] = payloads if self.batches else payloads[0]
        if self._message:
            arguments[self._message] = list(messages) if self.batches else messages[0]
        try:
            if self._asynchronous:
                returned = await self.function(**arguments)
            else:
                loop = asyncio.get_running_loop()
                # What belongs to the message being handled (its trace, its transaction) holds in the thread too.
                context = contextvars.copy_context()
                returned = await loop.run_in_executor(threads, lambda: context.run(self.function, **arguments))
        except Outcome as outcome:
            return outcome
        if isinstance(returned, type) and issubclass(returned, Outcome):
            returned = returned()
        if isinstance(returned, Outcome):
            return returned
        if returned is not None and not self._ignored:
            self._ignored = True
            log.warning(
                "what a handler returns is ignored, unless it is Ack, Retry or Reject",
                handler=self.name,
                returned=type(returned).__name__,
            )
        return Ack()
