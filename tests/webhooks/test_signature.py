"""Signing and verifying. What is expected comes from elsewhere: OpenSSL's command, and the scheme's own example."""

from __future__ import annotations

import base64
import shutil
import subprocess

import pytest
from tests.waiting import SECONDS

from headrace.webhooks import InvalidSignature, new_secret, sign, verify

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
BODY = b'{"test": 2432232314}'


def headers(
    secrets: str | list[str] = SECRET, at: int = 1_614_265_330, id: str = "msg_p5jXN8AQM9LWM0D4loKWxJek"
) -> dict[str, str]:
    return sign(id, at, BODY, secrets)


def test_the_example_of_the_scheme():
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert headers(secret)["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_openssl_computes_the_same():
    content = b"orders/0/7.1700000000." + BODY
    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"]
    made = subprocess.run(command, input=content, capture_output=True, check=True, timeout=SECONDS).stdout
    expected = "v1," + base64.b64encode(made).decode()
    assert headers(at=1_700_000_000, id="orders/0/7")["webhook-signature"] == expected


def test_what_is_signed_verifies():
    given = headers()
    assert verify(BODY, given, SECRET, now=1_614_265_330) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert verify(BODY, {name.title(): value for name, value in given.items()}, SECRET, now=1_614_265_030)
    assert verify(BODY, given, ["another text of sixteen", SECRET], now=1_614_265_630)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_what_is_missing_or_changed(name: str):
    given = headers()
    without = {each: value for each, value in given.items() if each != name}
    with pytest.raises(InvalidSignature, match=name):
        verify(BODY, without, SECRET, now=1_614_265_330)
    changed = {**given, name: given[name][:-2] + "1" + given[name][-1:]}
    with pytest.raises(InvalidSignature):
        verify(BODY, changed, SECRET, now=1_614_265_330)


def test_another_body_secret_or_time():
    given = headers()
    with pytest.raises(InvalidSignature, match="fits"):
        verify(BODY + b" ", given, SECRET, now=1_614_265_330)
    with pytest.raises(InvalidSignature, match="fits"):
        verify(BODY, given, new_secret(), now=1_614_265_330)
    for now in (1_614_265_330 + 301, 1_614_265_330 - 301):
        with pytest.raises(InvalidSignature, match="seconds ago"):
            verify(BODY, given, SECRET, now=now)
    assert verify(BODY, given, SECRET, now=1_614_265_330 + 301, tolerance=302)
    for at in ("x", "-5", "1" * 16, "١"):
        with pytest.raises(InvalidSignature, match="webhook-timestamp"):
            verify(BODY, {**given, "webhook-timestamp": at}, SECRET)
    for signature in ("", "v1", "v1,", "v2," + given["webhook-signature"][3:], "v1,\xff", "v1a,x v1,ü"):
        with pytest.raises(InvalidSignature):
            verify(BODY, {**given, "webhook-signature": signature}, SECRET, now=1_614_265_330)


def test_while_a_secret_is_replaced():
    old, new = new_secret(), new_secret()
    given = headers([old, new])
    assert len(given["webhook-signature"].split()) == 2
    for secret in (old, new):
        assert verify(BODY, given, secret, now=1_614_265_330)


def test_secrets_that_are_none():
    for secret in ("", "short", "whsec_", "whsec_!!!!", "whsec_" + base64.b64encode(b"x" * 15).decode(), "x" * 15):
        with pytest.raises(ValueError, match=r"secret"):
            sign("1", 0, b"", secret)
    with pytest.raises(ValueError, match="no secret"):
        verify(b"", {}, [])
    assert sign("1", 0, b"", "x" * 16)
    assert sign("1", 0, b"", b"x" * 16) == sign("1", 0, b"", "x" * 16)


def test_receivers_need_no_extra():
    code = "import sys; sys.modules.update(aiohttp=None, msgspec=None, confluent_kafka=None); import headrace.webhooks"
    subprocess.run([__import__("sys").executable, "-c", code], check=True, timeout=60)
