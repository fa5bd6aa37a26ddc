"""Signed tokens: which count, and where the keys come from."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from tests.captured_logs import capture_logs
from tests.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.security import Operation, Resource, Session
from headrace.broker.security.jwt import KEYS_BYTES_MAX, KEYS_MAX, TOKEN_CHARACTERS_MAX, parse_keys
from headrace.config import Config
from headrace.errors import AuthenticationFailed, ConfigError

Starting = Callable[..., Awaitable[Broker]]
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://issuer.example", "headrace"


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": kid, "use": "sig", **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def claims(**more: Any) -> dict[str, Any]:
    made = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600, **more}
    return {name: value for name, value in made.items() if value is not None}


def token(key: Any = RSA_KEY, kid: str | None = "one", algorithm: str = "RS256", **more: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**more), key, algorithm, headers)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(jwk(RSA_KEY, "one", alg="RS256"), jwk(EC_KEY, "two")))
    return path


@pytest.fixture
async def verify(start_broker: Starting, keys_file: Path) -> Callable[..., Any]:
    settings = {"jwt_keys": str(keys_file), "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}

    async def start(**more: Any) -> Callable[[str], Any]:
        broker = await start_broker(**settings, **more)
        return lambda text: broker.security.authenticator.bearer(text, Session())

    return start


async def why(verified: Awaitable[Any]) -> str:
    with pytest.raises(AuthenticationFailed) as failure:
        await verified
    return str(failure.value).removeprefix("authentication failed: ")


async def test_a_token_shows_its_user(verify: Any):
    bearer = await verify()
    expires = int(time.time()) + 600
    identity = await bearer(token(exp=expires))
    assert (identity.user, identity.how, identity.scope) == ("ann", "jwt", None)
    assert identity.expires_at == expires * 1000 + 30_000
    assert (await bearer(token(EC_KEY, "two", "ES256"))).user == "ann"
    assert (await bearer(token(aud=["other", AUDIENCE]))).user == "ann"
    # The clock of who made it may be a little off.
    assert (await bearer(token(exp=int(time.time()) - 5, nbf=int(time.time()) + 5))).user == "ann"


async def test_what_does_not_count(verify: Any):
    bearer = await verify()
    now = int(time.time())
    good = token()
    head, payload, signature = good.split(".")
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )

    def unsigned(algorithm: str) -> str:
        header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "one"}).encode()).rstrip(b"=").decode()
        return f"{header}.{payload}."

    # A symmetric signature with the public key as the secret.
    header = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "one"}).encode()).rstrip(b"=").decode()
    mac = hmac.digest(public, f"{header}.{payload}".encode(), hashlib.sha256)
    forged = f"{header}.{payload}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    none_listed = "the token's algorithm is not among jwt_algorithms"
    for text, reason in (
        (token(exp=now - 100), "the token has expired"),
        (token(nbf=now + 100), "the token is not valid yet"),
        (token(aud="other"), "the token is for another audience"),
        (token(iss="https://other.example"), "the token has another issuer"),
        (token(exp=None), "the token lacks the claim exp"),
        (token(aud=None), "the token lacks the claim aud"),
        (token(iss=None), "the token lacks the claim iss"),
        (token(sub=None), "the token's claim sub is not a user name"),
        (token(OTHER_KEY), "the token's signature or form is wrong"),
        (f"{head}.{payload}.{signature[:-4]}AAAA", "the token's signature or form is wrong"),
        (f"{head}.{payload}.", "the token's signature or form is wrong"),
        (token(kid=None), "the token's key is unknown"),
        (token(kid="three"), "the token's key is unknown"),
        (unsigned("none"), none_listed),
        (unsigned("None"), none_listed),
        (forged, none_listed),
        (token(RSA_KEY, "one", "PS256"), none_listed),
        (token(EC_KEY, "one", "ES256"), "the token's algorithm is not its key's"),
        (token(RSA_KEY, "two", "RS256"), "the token's signature or form is wrong"),
        (
            jwt.encode(claims(), RSA_KEY, "RS256", {"kid": "one", "crit": ["x"], "x": 1}),
            "the token ",
        ),
        ("", "the token is not a signed token"),
        ("a.b", "the token is not a signed token"),
        ("a.b.c", "the token is not a signed token"),
        ("é.b.c", "the token is not a signed token"),
        ("x" * (TOKEN_CHARACTERS_MAX + 1), f"the token has more than {TOKEN_CHARACTERS_MAX} characters"),
        (token(sub="ANONYMOUS"), "no user can have the name"),
        (token(sub="*"), "no user can have the name"),
        (token(sub="a\nb"), "the token's claim sub is not a user name"),
    ):
        assert (await why(bearer(text))).startswith(reason), text
    # One that is unchanged still counts.
    assert (await bearer(good)).user == "ann"


async def test_nothing_counts_by_default(broker: Broker):
    assert await why(broker.security.authenticator.bearer(token(), Session())) == (
        "signed tokens are not accepted: jwt_keys is not configured"
    )


async def test_another_claim_has_the_user(verify: Any):
    bearer = await verify(jwt_user_claim="email")
    assert (await bearer(token(email="ann@example.com"))).user == "ann@example.com"


async def test_a_claim_narrows_what_a_token_is_for(verify: Any, start_broker: Starting):
    bearer = await verify(jwt_scope_claim="scope")
    write, topic = Operation.WRITE, Resource.TOPIC
    one = (await bearer(token(scope="openid write:topic:t* profile"))).scope
    assert one.decide(write, topic, "t1") is not None
    assert one.decide(write, topic, "u") is None
    # What was decided by it is remembered for the next one.
    assert (await bearer(token(scope=["write:topic:t*", "openid", "profile", 7]))).scope is one
    for scope in (None, "", "openid", 7):
        assert (await bearer(token(scope=scope))).scope.rules == ()


class Provider:
    """Serves keys, and counts how often."""

    def __init__(self) -> None:
        self.body = b""
        self.requests = 0
        self.redirect = ""
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.requests += 1
                self.send_response(302 if provider.redirect else 200)
                if provider.redirect:
                    self.send_header("Location", provider.redirect)
                self.send_header("Content-Length", str(len(provider.body)))
                self.end_headers()
                self.wfile.write(provider.body)

            def log_message(self, *arguments: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"


@contextmanager
def providing() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        thread.join()
        provider.server.server_close()


async def test_keys_rotate(start_broker: Starting):
    with providing() as provider:
        provider.body = jwks(jwk(RSA_KEY, "one"))
        broker = await start_broker(
            jwt_keys=provider.url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_refetch_ms=200, jwt_refresh_ms=60_000
        )

        def bearer(text: str) -> Any:
            return broker.security.authenticator.bearer(text, Session())

        assert provider.requests == 0
        for _ in range(3):
            assert (await bearer(token())).user == "ann"
        assert provider.requests == 1
        # Strangers that name unknown keys do not make it read all the time.
        for number in range(20):
            assert await why(bearer(token(OTHER_KEY, f"key{number}"))) == "the token's key is unknown"
        asked = provider.requests
        assert asked <= 3
        provider.body = jwks(jwk(OTHER_KEY, "two"))

        async def is_known() -> bool:
            try:
                return bool(await bearer(token(OTHER_KEY, "two")))
            except AuthenticationFailed:
                return False

        await until(is_known)
        assert await why(bearer(token())) == "the token's key is unknown"
        # What cannot be read leaves the keys as they are.
        provider.body = b"{}"
        with capture_logs() as lines:

            async def is_logged() -> bool:
                await why(bearer(token()))
                return any(each["event"] == "keys of tokens cannot be read" for each in lines)

            await until(is_logged)
        assert await is_known()


async def test_keys_are_read_again_in_time(start_broker: Starting):
    with providing() as provider:
        provider.body = jwks(jwk(RSA_KEY, "one"))
        broker = await start_broker(
            jwt_keys=provider.url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, jwt_refetch_ms=60_000, jwt_refresh_ms=100
        )
        assert (await broker.security.authenticator.bearer(token(), Session())).user == "ann"
        provider.body = jwks(jwk(OTHER_KEY, "one"))

        async def is_refused() -> bool:
            try:
                await broker.security.authenticator.bearer(token(), Session())
            except AuthenticationFailed:
                return True
            return False

        await until(is_refused)


async def test_keys_that_are_not_there(start_broker: Starting):
    with providing() as provider:
        provider.redirect = "http://127.0.0.1:9/elsewhere"
        broker = await start_broker(jwt_keys=provider.url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
        assert "cannot be read now" in await why(broker.security.authenticator.bearer(token(), Session()))
        assert provider.requests == 1
    broker = await start_broker(jwt_keys="/no/such/file", jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    assert "cannot be read now" in await why(broker.security.authenticator.bearer(token(), Session()))


async def test_the_only_key_needs_no_name(start_broker: Starting, tmp_path: Path):
    path = tmp_path / "one.json"
    made = jwk(RSA_KEY, "one")
    path.write_bytes(jwks(made))
    broker = await start_broker(jwt_keys=str(path), jwt_issuer=ISSUER, jwt_audience=AUDIENCE)
    assert (await broker.security.authenticator.bearer(token(kid=None), Session())).user == "ann"


def test_what_is_no_key():
    symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "one"}
    good = jwk(RSA_KEY, "one")
    strange = {"kty": "moon", "kid": "m"}
    encrypting = {**good, "use": "enc", "kid": "two"}
    assert set(parse_keys(jwks(symmetric, strange, encrypting, good))) == {"one"}
    for raw in (
        jwks(symmetric),
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b"no json",
        b"\xff",
        jwks(*[good] * (KEYS_MAX + 1)),
        b" " * (KEYS_BYTES_MAX + 1),
    ):
        with pytest.raises(ValueError, match=r"[a-z]"):
            parse_keys(raw)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jwt_algorithms": "none"}, "choose from"),
        ({"jwt_algorithms": "RS256;HS256"}, "choose from"),
        ({"jwt_algorithms": ""}, "choose from"),
        ({"jwt_keys": "k", "jwt_issuer": "i"}, "jwt_audience"),
        ({"jwt_keys": "k", "jwt_audience": "a"}, "jwt_issuer"),
        ({"jwt_keys": "http://example.com/jwks", "jwt_issuer": "i", "jwt_audience": "a"}, "https URL"),
        ({"jwt_keys": "http://127.0.0.1.example.com/jwks", "jwt_issuer": "i", "jwt_audience": "a"}, "https URL"),
        ({"jwt_keys": "file:///etc/keys", "jwt_issuer": "i", "jwt_audience": "a"}, "https URL"),
    ],
)
def test_what_cannot_be_set(settings: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        Config(**settings)
