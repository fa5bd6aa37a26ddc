"""Users, their credentials and their tokens: how they are made, changed, listed and removed.

Each call asks whether the session may, so that no door has to, and is durable when it returns. Sessions of a user that
is deleted, or of a token that is revoked, end at once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.broker.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    Credential,
    Mechanism,
    credential_of,
    derive,
)
from headrace.broker.security.rights import CLUSTER_NAME, Operation, Resource
from headrace.broker.security.rules import ANY, Rule
from headrace.broker.security.session import ANONYMOUS, Session
from headrace.broker.security.store import Json, Key, RecordKind, StoredChange
from headrace.broker.security.tokens import (
    ID_BYTES,
    NOTE_CHARACTERS_MAX,
    SECRET_BYTES,
    Token,
    digest_of,
    scope_of,
    scope_text,
    text_of,
)
from headrace.broker.security.users import NAME_CHARACTERS_MAX, User
from headrace.broker.security_settings import SecuritySettings
from headrace.errors import (
    DuplicateCredentials,
    HeadraceError,
    InvalidCredentials,
    NotAuthorized,
    TooManyIdentities,
    UnknownToken,
    UnknownUser,
    UserExists,
)
from headrace.runtime import Runtime

if TYPE_CHECKING:
    from headrace.broker.security.security import Security

PASSWORD_BYTES_MAX = 1_024
SALT_BYTES_MAX = 1_024
KEEP_OLD_MAX_MS = 30 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Upsert:
    """A credential of a user, made by a client that keeps the password to itself."""

    user: str
    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Deletion:
    """A credential that is to go."""

    user: str
    mechanism: Mechanism


def check_user_name(name: str) -> None:
    """Raise InvalidCredentials unless the name may be a user's."""
    if not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidCredentials(f"a user's name has 1 to {NAME_CHARACTERS_MAX} characters (got {len(name)})")
    if name in (ANY, ANONYMOUS) or name.startswith("User:") or name != name.strip() or ";" in name:
        raise InvalidCredentials(f"'{name}' cannot be a user's name: it means something else. Choose another.")
    if not name.isprintable():
        raise InvalidCredentials(f"a user's name has printable characters alone (got {name!r})")


def encode_password(password: str) -> bytes:
    """What credentials are derived from. Raises InvalidCredentials."""
    raw = password.encode("utf-8", "surrogatepass")
    if not 0 < len(raw) <= PASSWORD_BYTES_MAX:
        raise InvalidCredentials(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes")
    return raw


class Accounts:
    """All users and tokens."""

    def __init__(self, runtime: Runtime, security: Security, config: SecuritySettings) -> None:
        self._runtime = runtime
        self._security = security
        self._store = security.store
        self._users = security.users
        self._users_max, self._tokens_max = config.users_max, config.tokens_max
        self._user_table = self._store.table(USER, self._on_user)
        self._token_table = self._store.table(TOKEN, self._on_token)
        self._secret_table = self._store.table(SECRET, self._on_secret)

    def _on_user(self, key: Key, before: User | None, now: User | None) -> None:
        (name,) = key
        if now is not None:
            self._users.by_name[name] = now
        elif self._users.by_name.pop(name, None) is not None:
            self._security.end_user(name, "the user was deleted")

    def _on_token(self, key: Key, before: Token | None, now: Token | None) -> None:
        (token_id,) = key
        if now is not None:
            self._users.tokens[token_id] = now
        elif self._users.tokens.pop(token_id, None) is not None and before is not None:
            self._security.end_user(before.user, "the token was revoked", token_id)

    def _on_secret(self, key: Key, before: bytes | None, now: bytes | None) -> None:
        if now is not None:
            self._users.secret = now

    def _record(self, session: Session, action: str, user: str, detail: str = "") -> None:
        self._security.audit.record(session, action, Resource.USER, user, detail=detail)

    def _may(self, session: Session, operation: Operation) -> None:
        self._security.check(session, operation, Resource.CLUSTER, CLUSTER_NAME)

    # --- users --------------------------------------------------------------------------------------------------------

    def users(self, session: Session) -> list[User]:
        """All users, by name. Raises NotAuthorized."""
        self._may(session, Operation.DESCRIBE)
        return sorted(self._users.by_name.values(), key=lambda user: user.name)

    def _existing(self, name: str) -> User:
        user = self._users.by_name.get(name)
        if user is None:
            raise UnknownUser(f"there is no user '{name[:NAME_CHARACTERS_MAX]}'")
        return user

    async def create_user(self, session: Session, name: str, password: str | None = None) -> None:
        """Make a user; without a password it has tokens alone. Raises NotAuthorized, UserExists, InvalidCredentials
        or TooManyIdentities."""
        self._may(session, Operation.ALTER)
        check_user_name(name)
        made = () if password is None else await self._derive(password, {})
        async with self._store.changing():
            if name in self._users.by_name:
                raise UserExists(
                    f"there is a user '{name}' already. To change its password: `headrace user set-password`"
                )
            await self._put(User(name, tuple(made)))
        self._record(session, "user.create", name)

    async def set_password(self, session: Session, name: str, password: str, keep_old_ms: int = 0) -> None:
        """Change a password; the old one stays valid for a while. Raises NotAuthorized, UnknownUser or
        InvalidCredentials."""
        self._may(session, Operation.ALTER)
        if not 0 <= keep_old_ms <= KEEP_OLD_MAX_MS:
            raise InvalidCredentials(f"an old password stays valid for 0 to {KEEP_OLD_MAX_MS} ms (got {keep_old_ms})")
        async with self._store.changing():
            user = self._existing(name)
            now = self._runtime.clock.now_ms()
            # With the same salt one exchange can verify both.
            kept = {each.mechanism: each for each in user.credentials if not each.expires_ms} if keep_old_ms else {}
            made = await self._derive(password, kept)
            await self._put(user.with_password(made, now + keep_old_ms if keep_old_ms else 0))
        self._record(
            session, "user.password", name, f"the old one stays valid for {keep_old_ms} ms" if keep_old_ms else ""
        )

    async def delete_user(self, session: Session, name: str) -> None:
        """Remove a user with its tokens and roles; its sessions end. Rules that name it stay. Raises NotAuthorized or
        UnknownUser."""
        self._may(session, Operation.ALTER)
        async with self._store.changing():
            self._existing(name)
            tokens = [each for each in self._users.tokens.values() if each.user == name]
            # First the user: its sessions are told why they end.
            changes = [self._user_table.drop((name,)), *(self._token_table.drop((each.id,)) for each in tokens)]
            await self._store.write([*changes, *self._security.grants.dropped_roles(name)])
            await self._security.notify_rules((name,))
        self._record(session, "user.delete", name)

    def _check_room(self, more: int) -> None:
        if len(self._users.by_name) + more > self._users_max:
            raise TooManyIdentities(f"there are {self._users_max} users, the maximum. Delete some, or raise users_max.")

    async def _derive(self, password: str, kept: Mapping[Mechanism, Credential]) -> list[Credential]:
        raw = encode_password(password)
        salts = {
            each: (kept[each].salt, kept[each].iterations)
            if each in kept
            else (self._runtime.random.bytes(SALT_BYTES), ITERATIONS_MAX)
            for each in Mechanism
        }
        return await self._runtime.offload.run(derive, raw, salts)

    async def _put(self, *users: User) -> None:
        """Write users; with the first one, what salts of unknown ones are made of."""
        await self._store.write(self.put_changes(*users))

    def put_changes(self, *users: User) -> list[StoredChange]:
        """What makes users, or gives them other credentials. The caller writes it. Raises TooManyIdentities."""
        self._check_room(sum(user.name not in self._users.by_name for user in users))
        changes: list[StoredChange] = [self._user_table.put((user.name,), user) for user in users]
        if not self._secret_table.values:
            changes.append(self._secret_table.put((), self._users.secret))
        return changes

    # --- credentials, as Kafka's clients change them ------------------------------------------------------------------

    def describe_credentials(
        self, session: Session, names: Sequence[str] | None = None
    ) -> dict[str, list[Credential] | HeadraceError]:
        """The credentials of these users, or of all that have some. Raises NotAuthorized."""
        self._may(session, Operation.DESCRIBE)
        now = self._runtime.clock.now_ms()
        found: dict[str, list[Credential] | HeadraceError] = {}
        for name in sorted(self._users.by_name) if names is None else names:
            user = self._users.by_name.get(name)
            current = [] if user is None else [one for each in Mechanism for one in user.of(each, now)[:1]]
            if name in found:
                found[name] = DuplicateCredentials(f"the user '{name}' is asked for twice")
            elif current:
                found[name] = current
            elif names is not None:
                found[name] = UnknownUser(f"there is no user '{name}' with credentials")
        return found

    async def alter_credentials(
        self, session: Session, changes: Sequence[Upsert | Deletion]
    ) -> dict[str, HeadraceError]:
        """Change credentials, all of a user's or none; of those that were not changed, why. Raises NotAuthorized."""
        self._may(session, Operation.ALTER)
        failed: dict[str, HeadraceError] = {}
        by_user: dict[str, list[Upsert | Deletion]] = {}
        for change in changes:
            by_user.setdefault(change.user, []).append(change)
        async with self._store.changing():
            altered: list[User] = []
            new = 0
            for name, of_user in by_user.items():
                try:
                    user = self._altered(name, of_user)
                    if name not in self._users.by_name:
                        self._check_room(new + 1)
                        new += 1
                    altered.append(user)
                except HeadraceError as error:
                    failed[name] = error
            if altered:
                await self._put(*altered)
        for user in altered:
            self._record(session, "user.credentials", user.name, ", ".join(each.mechanism for each in user.credentials))
        return failed

    def _altered(self, name: str, changes: Sequence[Upsert | Deletion]) -> User:
        """A user after some changes."""
        mechanisms = [change.mechanism for change in changes]
        if len(set(mechanisms)) < len(mechanisms):
            raise DuplicateCredentials(f"one request changes a credential of '{name[:NAME_CHARACTERS_MAX]}' twice")
        user = self._users.by_name.get(name)
        if user is None:
            if not any(isinstance(change, Upsert) for change in changes):
                raise UnknownUser(f"there is no user '{name[:NAME_CHARACTERS_MAX]}'")
            check_user_name(name)
            user = User(name)
        for change in changes:
            if isinstance(change, Upsert):
                user = user.with_password([_credential(change)], 0)
            elif any(each.mechanism is change.mechanism for each in user.credentials):
                user = user.without(change.mechanism)
            else:
                raise UnknownUser(f"the user '{name}' has no {change.mechanism} credential")
        return user

    # --- tokens -------------------------------------------------------------------------------------------------------

    def tokens(self, session: Session, user: str | None = None) -> list[Token]:
        """The tokens of a user, or all; the oldest first. Raises NotAuthorized."""
        if user is None:
            self._may(session, Operation.DESCRIBE)
        else:
            self._may_tokens(session, Operation.DESCRIBE_TOKENS, Operation.DESCRIBE, user)
        found = [each for each in self._users.tokens.values() if user in (None, each.user)]
        return sorted(found, key=lambda token: (token.created_at, token.id))

    async def create_token(
        self,
        session: Session,
        user: str,
        *,
        expires_at: int = 0,
        scope: Sequence[str] = (),
        note: str = "",
        signing: bool = False,
    ) -> tuple[Token, str]:
        """Make a token of a user, and its text, which nothing can show again. Raises NotAuthorized, UnknownUser,
        InvalidCredentials, InvalidRule or TooManyIdentities."""
        self._may_tokens(session, Operation.CREATE_TOKENS, Operation.ALTER, user)
        if session.scope is not None:
            # It could make one without.
            raise NotAuthorized(Operation.CREATE_TOKENS.name, Resource.USER.name, user)
        now = self._runtime.clock.now_ms()
        if expires_at and expires_at <= now:
            raise InvalidCredentials(f"a token cannot expire in the past (got {expires_at} ms since 1970)")
        if len(note) > NOTE_CHARACTERS_MAX or not note.isprintable():
            raise InvalidCredentials(f"a note has at most {NOTE_CHARACTERS_MAX} printable characters")
        narrowed = scope_of(scope)
        async with self._store.changing():
            self._existing(user)
            if len(self._users.tokens) >= self._tokens_max:
                raise TooManyIdentities(
                    f"there are {self._tokens_max} tokens, the maximum. Revoke some, or raise tokens_max."
                )
            secret = self._runtime.random.bytes(SECRET_BYTES).hex()
            token_id = self._runtime.random.bytes(ID_BYTES).hex()
            kept = (b"", secret) if signing else (digest_of(secret), "")
            token = Token(token_id, user, now, expires_at, narrowed, note, *kept)
            await self._store.write([self._token_table.put((token_id,), token)])
        self._record(session, "token.create", user, f"{token_id} {' '.join(scope)}".strip())
        return token, text_of(token_id, secret)

    async def revoke_token(self, session: Session, token_id: str) -> None:
        """End a token and its sessions. Raises NotAuthorized or UnknownToken."""
        async with self._store.changing():
            token = self._users.tokens.get(token_id)
            # One that may not see tokens learns of none.
            self._may_tokens(session, Operation.CREATE_TOKENS, Operation.ALTER, token.user if token else "")
            if token is None:
                # What was given may be a whole token, and so a secret.
                raise UnknownToken("there is no token of that id. See `headrace token list`.")
            await self._store.write([self._token_table.drop((token_id,))])
        self._record(session, "token.revoke", token.user, token_id)

    def _may_tokens(self, session: Session, operation: Operation, over_all: Operation, user: str) -> None:
        """A right to the tokens of one user, or to all that users are."""
        self._security.check_any(session, (over_all, Resource.CLUSTER, CLUSTER_NAME), (operation, Resource.USER, user))


def _credential(change: Upsert) -> Credential:
    """What is kept of what a client has made. Raises InvalidCredentials."""
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        raise InvalidCredentials(
            f"a credential has {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations (got {change.iterations})"
        )
    if not 0 < len(change.salt) <= SALT_BYTES_MAX:
        raise InvalidCredentials(f"a salt has 1 to {SALT_BYTES_MAX} bytes (got {len(change.salt)})")
    if len(change.salted_password) != change.mechanism.size:
        raise InvalidCredentials(
            f"a salted password of {change.mechanism} has {change.mechanism.size} bytes "
            f"(got {len(change.salted_password)})"
        )
    return credential_of(change.mechanism, change.salted_password, change.salt, change.iterations)


# --- records ----------------------------------------------------------------------------------------------------------


def _write_user(user: User) -> Json:
    return {"credentials": [write_credential(each) for each in user.credentials]}


def write_credential(credential: Credential) -> dict[str, Any]:
    """A credential as JSON has it."""
    return {
        "mechanism": credential.mechanism.value,
        "iterations": credential.iterations,
        "salt": b64encode(credential.salt).decode(),
        "stored_key": b64encode(credential.stored_key).decode(),
        "server_key": b64encode(credential.server_key).decode(),
        "expires_ms": credential.expires_ms,
    }


def _read_user(key: Key, value: Json) -> User:
    (name,) = key
    return User(name, tuple(map(read_credential, value["credentials"])))


def read_credential(value: Mapping[str, Any]) -> Credential:
    """The same read. Raises ValueError, LookupError or TypeError."""
    salt, stored, server = (b64decode(value[each]) for each in ("salt", "stored_key", "server_key"))
    mechanism = Mechanism(value["mechanism"])
    return Credential(mechanism, int(value["iterations"]), salt, stored, server, int(value["expires_ms"]))


def _write_token(token: Token) -> Json:
    rules: Sequence[Rule] = () if token.scope is None else token.scope.rules
    return {
        "user": token.user,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "scope": [scope_text(each) for each in rules],
        "note": token.note,
        "digest": token.digest.hex(),
        "secret": token.secret,
    }


def _read_token(key: Key, value: Json) -> Token:
    (token_id,) = key
    return Token(
        token_id,
        value["user"],
        int(value["created_at"]),
        int(value["expires_at"]),
        scope_of(value["scope"]),
        value["note"],
        bytes.fromhex(value["digest"]),
        value["secret"],
    )


USER = RecordKind("user", _write_user, _read_user)
TOKEN = RecordKind("token", _write_token, _read_token)
SECRET: RecordKind[bytes] = RecordKind(
    "salts", lambda secret: {"secret": secret.hex()}, lambda key, value: bytes.fromhex(value["secret"])
)
