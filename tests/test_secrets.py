"""Nothing secret is in logs, metrics, answers, errors, the audit or what objects show of themselves."""

from __future__ import annotations

import asyncio
import hmac
import json
from base64 import b64encode
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.captured_logs import capture_logs

from headrace.addresses import parse_address
from headrace.broker.security import OWN, Session
from headrace.broker.security.accounts import Upsert
from headrace.broker.security.credentials import Mechanism, salt_password
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.server import Server

WORDS = ("first", "second", "third", "wrong", "x" * 1_100)
PASSWORDS = tuple(f"{word}-Secret-word" for word in WORDS)
SALT = b"Secret salt of a client."


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    place = parse_address(address)
    assert place is not None
    connection = HTTPConnection(*place, timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


async def test_secrets_are_shown_nowhere(tmp_path: Path):
    config = Config(
        **{"data": str(tmp_path / "data"), "http": "127.0.0.1:0", "audit": "on", "log_level": "debug"},
        **dict.fromkeys(("kafka", "nsq", "nsq_http", "lookup", "lookup_http"), "off"),
        **dict.fromkeys(("rocketmq", "rocketmq_namesrv", "rocketmq_grpc"), "off"),
        **{"authentication_delay_max_ms": 0, "super_users": "ann;ANONYMOUS", "authorization": "on"},
        jwt_keys=str(tmp_path / "missing.json"), jwt_issuer="i", jwt_audience="a",
    )  # fmt: skip
    shown: list[str] = [repr(config)]
    secrets = [*PASSWORDS]
    with capture_logs() as lines:
        server = Server(config)
        await server.start()
        security = server.broker.security
        address = server.addresses["http"]

        async def request(method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
            status, text = await asyncio.to_thread(ask, address, method, path, body, **headers)
            answer: dict[str, Any] = json.loads(text)
            if (method, path, status) == ("POST", "/v1/tokens", 200):
                token: str = answer["token"]
                secrets.extend((token, token.rpartition("_")[2]))
            else:
                shown.append(text)
            return answer

        await request("POST", "/v1/users", {"name": "ann", "password": PASSWORDS[0]})
        await request("POST", "/v1/users", {"name": "ann", "password": PASSWORDS[1]})
        await request("POST", "/v1/users", {"name": "bob", "password": PASSWORDS[4]})
        await request("POST", "/v1/users", {"name": "bob", "password": [PASSWORDS[3]]})
        await request("PUT", "/v1/users/ann/password", {"password": PASSWORDS[1], "keep_old_ms": 60_000})
        await request("PUT", "/v1/users/bob/password", {"password": PASSWORDS[3]})
        for password in PASSWORDS:
            await request("GET", "/v1/users", **basic("ann", password))
        plain = (await request("POST", "/v1/tokens", {"user": "ann", "scope": ["read:topic:*"]}))["token"]
        signing = (await request("POST", "/v1/tokens", {"user": "ann", "signing": True}))["token"]
        await request("POST", "/v1/tokens", {"user": "zoe"})
        mistyped = plain[:-1] + ("0" if plain[-1] != "0" else "1")
        secrets.append(mistyped)
        signed = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJhbm4ifQ.c2VjcmV0LXNpZ25hdHVyZQ"
        secrets.append(signed)
        for bearer in (plain, signing, mistyped, signed, "Secret-of-another-kind"):
            await request("GET", "/v1/users", Authorization=f"Bearer {bearer}")
        secrets.append("Secret-of-another-kind")
        await request("GET", "/v1/users", **basic("ann", plain))
        await request("GET", "/v1/tokens")
        verify = security.authenticator
        key = signing.rpartition("_")[2]
        for given in (hmac.digest(key.encode(), b"request", "sha1"), b"wrong"):
            try:
                verify.signature(signing.split("_")[1], b"request", given, Session(door="test"))
            except HeadraceError as error:
                shown.append(str(error))
        salted = salt_password(Mechanism.SHA_256, PASSWORDS[2].encode(), SALT, 4096)
        upsert = Upsert("ann", Mechanism.SHA_256, 4096, SALT, salted)
        wrong = Upsert("bob", Mechanism.SHA_512, 1, SALT, salted)
        failed = await security.accounts.alter_credentials(OWN, [upsert, wrong])
        shown += [repr(upsert), *map(str, failed.values())]
        for mechanism in Mechanism:
            exchange = verify.scram(mechanism, Session(door="test"))
            first = exchange.step(b"n,,n=ann,r=nonce").decode()
            final = f"c=biws,{first.partition(',')[0]},p={b64encode(b'Secret' * 8).decode()}"
            try:
                exchange.step(final.encode())
            except HeadraceError as error:
                shown.append(str(error))
        await request("DELETE", "/v1/tokens/" + plain.split("_")[1])
        await request("DELETE", f"/v1/tokens/{plain}")
        await server.broker.audit.flush()
        shown.append((await asyncio.to_thread(ask, address, "GET", "/metrics"))[1])
        await request("GET", "/v1/audit?limit=1000")
        users = list(security.users.by_name.values())
        kept = [*(each for user in users for each in user.credentials)]
        shown += [repr(users), repr(list(security.users.tokens.values())), repr(security), repr(server.broker)]
        await server.stop()
    shown += [repr(each) for each in lines]
    assert kept
    # What may never be shown, in each form that it has.
    parts = [part for each in kept for part in (each.salt, each.stored_key, each.server_key)]
    for one in (SALT, salted, security.users.secret, *parts):
        secrets += [b64encode(one).decode().rstrip("="), one.hex(), repr(one)[2:-1]]
    text = "\n".join(shown)
    # It has seen what it looks through.
    for word in ("authentication failed", "token.create", "headrace_authentication_failures_total", "the token"):
        assert word in text, word
    for secret in secrets:
        assert secret not in text, f"{secret!r} in ...{text[max(0, text.find(secret) - 200) : text.find(secret) + 50]}"
