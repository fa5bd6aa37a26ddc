"""Administrators that a group of nodes is given from outside, before anybody could log in to make one.

`headrace cluster init --admin` puts the name and the SCRAM credentials into etcd, never the password. The node that
leads takes them into `__security`, in one write with a note of their id, and then removes them from etcd. Where it is
killed between the two, the next leader finds the note: what was given is taken once, also if the user was changed or
deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.broker.security.accounts import check_user_name, read_credential, write_credential
from headrace.broker.security.credentials import ITERATIONS_MAX, ITERATIONS_MIN, Credential
from headrace.broker.security.rights import Resource
from headrace.broker.security.roles import ADMIN, Grant
from headrace.broker.security.session import Session
from headrace.broker.security.store import Json, Key, RecordKind
from headrace.broker.security.users import User
from headrace.errors import InvalidCredentials

if TYPE_CHECKING:
    from headrace.broker.security.security import Security

# Ids that are remembered: far more than can wait in etcd, which keeps one.
IDS_MAX = 16
# Who did it, in the audit.
GIVER = Session(user="headrace cluster", host="etcd", door="offline")


@dataclass(frozen=True, slots=True)
class GivenAdmin:
    """An administrator to be."""

    id: str
    """Of this gift, not of the user."""
    user: str
    credentials: tuple[Credential, ...] = field(repr=False)

    def encode(self) -> list[dict[str, Any]]:
        """The credentials as JSON has them."""
        return [write_credential(each) for each in self.credentials]


def read_given(id: str, user: str, credentials: Sequence[Mapping[str, Any]]) -> GivenAdmin:
    """What etcd has. Raises InvalidCredentials, which shows nothing of them."""
    check_user_name(user)
    try:
        found = tuple(map(read_credential, credentials))
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidCredentials(f"the credentials of '{user}' cannot be read ({type(error).__name__})") from None
    for each in found:
        sizes = {len(each.stored_key), len(each.server_key)}
        if sizes != {each.mechanism.size} or not ITERATIONS_MIN <= each.iterations <= ITERATIONS_MAX or not each.salt:
            raise InvalidCredentials(f"the credentials of '{user}' are none that this broker could verify")
    if not found:
        raise InvalidCredentials(f"there are no credentials of '{user}'")
    return GivenAdmin(id, user, found)


class GivenAdmins:
    """Takes them."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._notes = security.store.table(TAKEN, lambda key, before, now: None)

    async def take(self, given: GivenAdmin) -> bool:
        """Make the user an administrator with these credentials, durably; False where that was done before. Raises
        TooManyIdentities, and what the log raises: nothing is changed then."""
        security = self._security
        grant = Grant(given.user, ADMIN)
        async with security.store.changing():
            ids = self._notes.values.get((), ())
            if given.id in ids:
                return False
            await security.store.write(
                [
                    *security.accounts.put_changes(User(given.user, given.credentials)),
                    *security.grants.put_changes(grant),
                    self._notes.put((), (*ids, given.id)[-IDS_MAX:]),
                ]
            )
            await security.notify_rules((given.user,))
        security.audit.record(GIVER, "user.create", Resource.USER, given.user)
        security.audit.record(GIVER, "role.grant", Resource.USER, given.user, detail=str(grant))
        return True


def _read_ids(key: Key, value: Json) -> tuple[str, ...]:
    return tuple(map(str, value["ids"]))


TAKEN: RecordKind[tuple[str, ...]] = RecordKind("given-admins", lambda ids: {"ids": list(ids)}, _read_ids)
