"""What every request of the remoting protocol passes before its handler: the signature, and the rights that it takes.

A client signs each request with its access key, which is the id of an API token that signs, and the token's secret:
HMAC-SHA1 over the values of the fields, in the order of their names, and the body. There is no time in it, so what
others can read on the way they can also send again: TLS is what keeps them from that. Requests of a connection whose
client has signed once are refused without a signature.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.broker import Broker
from headrace.broker.security import Operation, Resource, Security
from headrace.broker.security.rights import Declaration, Requires
from headrace.doors.rocketmq.codes import Code
from headrace.doors.rocketmq.errors import ResponseError
from headrace.doors.rocketmq.names import DEFAULT_TOPIC, RETRY, log_name
from headrace.doors.rocketmq.rights import SENDS
from headrace.errors import InvalidTopic

if TYPE_CHECKING:
    from headrace.doors.rocketmq.connection import Call, RemotingConnection

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
SIGNED = "signature"
# Rights that are watched for one connection; those beyond are asked for with each request.
WATCHES_MAX = 10_000


def signed_bytes(fields: Mapping[str, str], body: bytes) -> bytes:
    """What a client signs."""
    return "".join(value for name, value in sorted(fields.items()) if name != SIGNATURE).encode() + body


def topic_resource(name: str) -> tuple[Resource, str]:
    """What a right on a topic is about: a retry topic is a part of its group."""
    if name.startswith(RETRY):
        return Resource.GROUP, name.removeprefix(RETRY)
    try:
        return Resource.TOPIC, log_name(name)
    except InvalidTopic:
        # The handler refuses it.
        return Resource.TOPIC, name


def knows_users(security: Security) -> bool:
    """Whether signatures say anything. Clients that sign with whatever they were once given work with a broker that has
    no users, as they do with RocketMQ's."""
    return security.is_enforced or bool(security.users.by_name)


class Gate:
    """What one listener asks of requests."""

    def __init__(self, broker: Broker, declarations: Mapping[int, Declaration], *, is_required: bool) -> None:
        self._topics = broker.topics
        self._security = broker.security
        self._declarations = declarations
        self._is_required = is_required

    def is_closed(self, connection: RemotingConnection) -> bool:
        """Whether requests of a connection must be signed."""
        identity = connection.session.identity
        return self._is_required if identity is None else identity.how == SIGNED

    def enter(self, call: Call) -> None:
        """Ask for the signature and the rights of a request. Raises AuthenticationFailed, NotAuthorized or
        ResponseError."""
        access_key = call.request.fields.get(ACCESS_KEY)
        if access_key is not None and (self._is_required or knows_users(self._security)):
            self._authenticate(call, access_key)
        elif self.is_closed(call.connection):
            raise ResponseError(
                Code.NO_PERMISSION, "the request is not signed. Give the client an access key and its secret."
            )
        if self._security.is_enforced:
            self._authorize(call)

    def _authenticate(self, call: Call, access_key: str) -> None:
        connection, request = call.connection, call.request
        try:
            signature = b64decode(request.fields.get(SIGNATURE, ""), validate=True)
        except ValueError:
            signature = b""
        session = connection.session
        signed = signed_bytes(request.fields, request.body)
        identity = self._security.authenticator.signature(access_key, signed, signature, session)
        known = session.identity
        if known is None or known.token_id != identity.token_id:
            connection.log_in(identity)

    def _authorize(self, call: Call) -> None:
        declaration = self._declarations[call.request.code]
        if isinstance(declaration, tuple):
            for each in declaration:
                self._require(call, each)

    def _require(self, call: Call, required: Requires) -> None:
        session, security = call.connection.session, self._security
        operation, resource, name = required.operation, required.resource, required.by
        if name.startswith("{"):
            fields = call.request.fields
            name = next((fields[each] for each in name[1:-1].split("|") if each in fields), "")
        if resource is Resource.TOPIC:
            if name == DEFAULT_TOPIC:
                # Whose route is that of topics that are to be made.
                return
            resource, name = topic_resource(name)
            if resource is Resource.GROUP:
                operation = Operation.READ
            elif call.request.code in SENDS and self._topics.get(name) is None:
                security.check(session, operation, resource, name)
                security.check_create(session, name)
                return
        watches = call.connection.watches
        key = operation, resource, name
        if operation is not Operation.READ or (key not in watches and len(watches) >= WATCHES_MAX):
            security.check(session, *key)
        elif key not in watches:
            # What waits for messages, and the groups that the client is in, live by it.
            watches[key] = security.watch(session, *key, call.connection.revoke)
