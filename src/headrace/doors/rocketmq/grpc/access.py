"""Who calls over gRPC, and what it may do: each call shows it anew, in its metadata or by its connection's certificate.

`authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX` signs the time that stands
beside it, and nothing else of the call. RocketMQ's clients write that time as they like, so it is not judged: whoever
reads a call on the way can call as its client. TLS is what keeps others from that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.security import Identity, Operation, Resource, Session
from headrace.broker.security.watches import Watch
from headrace.doors.rocketmq.gate import knows_users
from headrace.doors.rocketmq.grpc.loop_time import LoopTime
from headrace.doors.rocketmq.grpc.protocol import Code, Proto
from headrace.doors.rocketmq.grpc.status import ResponseError
from headrace.errors import AuthenticationFailed, NotAuthorized

AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"
AUTHORIZATION_MAX = 1_024
# As gRPC calls it: in PEM, and verified.
CERTIFICATE = "x509_pem_cert"
_FORM = re.compile(r"MQv2-HMAC-SHA1 (.+)")
_EMPTY = re.compile(r" Credential=(,|$)")
_PART = re.compile(r"(\w+)=([^,]*)")

Right = tuple[Operation, Resource, str]


def metadata_of(context: Any) -> dict[str, str]:
    """The metadata of a call that is text."""
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


class Access:
    """Whom one listener lets in."""

    def __init__(self, broker: Broker, *, is_required: bool) -> None:
        self.security = broker.security
        self.loop_time = LoopTime(broker)
        self._topics = broker.topics
        self._is_required = is_required

    async def identify(self, session: Session, context: Any) -> None:
        """Give a session the identity that its call shows: by its signature, or else by the certificate of its
        connection. Raises ResponseError."""
        authenticator = self.security.authenticator
        metadata = metadata_of(context)
        given = metadata.get(AUTHORIZATION, "")
        certificate = context.auth_context().get(CERTIFICATE)
        # A client without credentials signs with none.
        if certificate and (not given or _EMPTY.search(given)):
            await self._login(session, lambda: authenticator.certificate(certificate[0], session))
            return
        if not given:
            if self._is_required:
                raise ResponseError(Code.UNAUTHORIZED, "the call is not signed. Give the client its credentials.")
            return
        if not (self._is_required or knows_users(self.security)):
            return
        form = _FORM.fullmatch(given) if len(given) <= AUTHORIZATION_MAX else None
        parts = dict(_PART.findall(form[1])) if form is not None else {}
        signature = parts.get("Signature", "")
        if not parts.get("Credential") and not self._is_required:
            # A client without credentials signs with none.
            return
        try:
            shown = bytes.fromhex(signature) if signature.isascii() and signature.isalnum() else b""
        except ValueError:
            raise ResponseError(Code.UNAUTHORIZED, "the signature is not written in hexadecimal digits") from None
        # Some clients put the region behind the key.
        key, signed = parts.get("Credential", "").partition("/")[0], metadata.get(DATE_TIME, "").encode()
        await self._login(session, lambda: authenticator.signature(key, signed, shown, session))

    async def _login(self, session: Session, verify: Callable[[], Identity]) -> None:
        try:
            identity = verify()
        except AuthenticationFailed as error:
            await asyncio.sleep(error.delay_ms / 1000)
            raise ResponseError(Code.UNAUTHORIZED, str(error)) from None
        self.security.login(session, identity)

    def forget(self, session: Session) -> None:
        """A call is over."""
        if session.identity is not None:
            self.security.logout(session)

    def check(self, session: Session, rights: Iterable[Right]) -> None:
        """Raise NotAuthorized unless a session has these rights, and that to make a topic which it would write."""
        for each in rights:
            self.security.check(session, *each)
            operation, resource, name = each
            is_made = operation is Operation.WRITE and resource is Resource.TOPIC and self._topics.get(name) is None
            if is_made and self.security.is_enforced:
                self.security.check_create(session, name)

    async def while_allowed(
        self, session: Session, rights: Iterable[Right], answers: AsyncIterator[Proto]
    ) -> AsyncIterator[Proto]:
        """The answers, as long as a session has these rights. Raises NotAuthorized once it has not."""
        revoked: asyncio.Future[NotAuthorized] = asyncio.get_running_loop().create_future()

        def revoke(error: NotAuthorized) -> None:
            if not revoked.done():
                revoked.set_result(error)

        watches: list[Watch] = []
        try:
            for each in rights:
                watches.append(self.security.watch(session, *each, revoke))
            while True:
                step = asyncio.ensure_future(anext(answers, None))
                try:
                    await asyncio.wait((step, revoked), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    # gRPC's own task cannot be cancelled without the call: the work is, which gives back what it holds.
                    step.cancel()
                if revoked.done():
                    await asyncio.wait((step,))
                    raise revoked.result()
                answer = step.result()
                if answer is None:
                    return
                yield answer
        finally:
            for watch in watches:
                watch.end()
