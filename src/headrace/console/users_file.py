"""Local users, for brokers that know none: a file with a line for each, NAME ROLE HASH."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path

from headrace.console.sessions import Role
from headrace.errors import ConfigError

# 16 MiB and some 50 ms for each login.
_COST = {"n": 1 << 14, "r": 8, "p": 1}


@dataclass(frozen=True, slots=True)
class LocalUser:
    """A user of the console."""

    name: str
    role: Role
    hash: str


def hash_password(password: str) -> str:
    salt = secrets.token_bytes(16)
    key = hashlib.scrypt(password.encode(), salt=salt, **_COST)
    return f"scrypt:{b64encode(salt).decode()}:{b64encode(key).decode()}"


# Compared with where there is no such user, so that both take as long.
_NOBODY = hash_password(secrets.token_hex(16))


def verify(user: LocalUser | None, password: str) -> bool:
    """Whether the password is the user's. Takes some 50 ms of CPU: call it off the loop."""
    _, salt, key = (user.hash if user is not None else _NOBODY).split(":")
    found = hashlib.scrypt(password.encode(), salt=b64decode(salt), **_COST)
    return hmac.compare_digest(found, b64decode(key)) and user is not None


def read_users(path: Path) -> dict[str, LocalUser]:
    """The users of a file; none where there is no file."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the users in {path} cannot be read: {error.strerror}") from None
    users = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[1].upper() not in Role.__members__ or words[2].count(":") != 2:
            raise ConfigError(f"{path}, line {number} is not NAME ROLE HASH. Use headrace console --add-user NAME.")
        users[words[0]] = LocalUser(words[0], Role[words[1].upper()], words[2])
    return users


def add_user(path: Path, name: str, role: str, password: str) -> None:
    """Add a user to a file, or change one."""
    if not name or name.split() != [name] or name.startswith("#"):
        raise ConfigError(f"a user's name must be one word (got {name!r})")
    if role.upper() not in Role.__members__:
        raise ConfigError(f"a role is one of viewer, reader, operator, admin (got {role!r})")
    if len(password) < 8:
        raise ConfigError("a password must have at least 8 characters")
    users = read_users(path)
    users[name] = LocalUser(name, Role[role.upper()], hash_password(password))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{each.name} {each.role.name.lower()} {each.hash}\n" for each in users.values())
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
