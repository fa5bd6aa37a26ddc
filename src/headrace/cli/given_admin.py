"""The administrator that `headrace cluster` puts into etcd for a group: a name and SCRAM credentials, no password."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from headrace.cli.credentials import ask_password

if TYPE_CHECKING:
    from headrace.cluster.records import AdminRecord

PasswordFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        help="Has the administrator's password in its first line; -: standard input. Otherwise it is asked for.",
    ),
]


def make_admin(name: str, password_file: str) -> AdminRecord:
    """The record, of a password that is read or asked for. Raises HeadraceError."""
    from headrace.broker.security.accounts import check_user_name, encode_password
    from headrace.broker.security.credentials import ITERATIONS_MAX, SALT_BYTES, Mechanism, derive
    from headrace.broker.security.given_admins import GivenAdmin
    from headrace.cluster.records import AdminRecord

    check_user_name(name)
    password = encode_password(ask_password(password_file, f"Password of {name}", twice=True))
    salts = {each: (secrets.token_bytes(SALT_BYTES), ITERATIONS_MAX) for each in Mechanism}
    given = GivenAdmin(str(uuid4()), name, tuple(derive(password, salts)))
    return AdminRecord(given.id, name, tuple(given.encode()))
