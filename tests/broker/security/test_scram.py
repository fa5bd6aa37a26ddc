"""The server's side of SCRAM, with the messages of RFC 7677 and with what attackers send instead."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.security.credentials import Credential, Mechanism, derive
from headrace.broker.security.identity import Identity
from headrace.broker.security.scram import ScramExchange
from headrace.errors import AuthenticationFailed

# RFC 7677, 3: the exchange of the user "user" with the password "pencil".
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def credentials(*passwords: bytes, mechanism: Mechanism = Mechanism.SHA_256) -> list[Credential]:
    return [derive(password, {mechanism: (SALT, 4_096)})[0] for password in passwords]


def exchange(*passwords: bytes, mechanism: Mechanism = Mechanism.SHA_256, nonce: str = NONCE) -> ScramExchange:
    known = credentials(*(passwords or (b"pencil",)), mechanism=mechanism)

    def finish(user: str, proven: Credential | None) -> Identity:
        if proven is None:
            raise AuthenticationFailed("wrong")
        return Identity(user, mechanism.value)

    return ScramExchange(mechanism, lambda user: known, finish, lambda user, why: AuthenticationFailed(why), nonce)


class Client:
    """The client's side."""

    def __init__(self, password: bytes, mechanism: Mechanism = Mechanism.SHA_256, name: str = "user") -> None:
        self.password, self.mechanism = password, mechanism
        self.bare = f"n={name},r=abc"

    def final(self, server_first: bytes, header: str = "n,,") -> bytes:
        nonce, salt, iterations = (each[2:] for each in server_first.decode().split(","))
        hash_name = self.mechanism.hash
        salted = hashlib.pbkdf2_hmac(hash_name, self.password, b64decode(salt), int(iterations))
        key = hmac.digest(salted, b"Client Key", hash_name)
        without_proof = f"c={b64encode(header.encode()).decode()},r={nonce}"
        signed = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


def test_the_exchange_of_the_rfc():
    one = exchange()
    assert one.step(CLIENT_FIRST) == SERVER_FIRST
    assert not one.is_done
    assert one.step(CLIENT_FINAL) == SERVER_FINAL
    assert one.is_done
    assert one.identity == Identity("user", "SCRAM-SHA-256")


@pytest.mark.parametrize("mechanism", Mechanism)
def test_each_of_two_passwords_that_are_valid_at_once(mechanism: Mechanism):
    for password in (b"old", b"new"):
        one = exchange(b"new", b"old", mechanism=mechanism)
        client = Client(password, mechanism)
        one.step(client.final(one.step(f"n,,{client.bare}".encode())))
        assert one.is_done


def test_a_name_with_a_comma_and_an_equals_sign():
    one = exchange()
    client = Client(b"pencil", name="a=2Cb=3Dc")
    one.step(client.final(one.step(f"n,a=a=2Cb=3Dc,{client.bare}".encode()), "n,a=a=2Cb=3Dc,"))
    assert one.identity is not None
    assert one.identity.user == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,r=abc,n=user",
        b"n,,m=x,n=user,r=abc",
        b"p=tls-unique,,n=user,r=abc",
        b"n,a=admin,n=user,r=abc",
        b"n,,n=user,r=abc,?",
        b"n,,n=user,r=abc,tokenauth=true",
        b"\xff,,n=user,r=abc",
        b"n,,n=user,r=" + b"a" * 5_000,
    ],
)
def test_a_first_message_that_is_none(message: bytes):
    one = exchange()
    with pytest.raises(AuthenticationFailed):
        one.step(message)
    with pytest.raises(AuthenticationFailed, match="is over"):
        one.step(CLIENT_FIRST)


def changed(change: Callable[[bytes], bytes]) -> Any:
    return pytest.param(change(CLIENT_FINAL))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        # Of another exchange, by its nonce; and with the client's part of it alone.
        changed(lambda final: final.replace(b"k0,p", b"k1,p")),
        changed(lambda final: final.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b"")),
        # Bound to another header: as if the server had said that it offers channel binding.
        changed(lambda final: final.replace(b"biws", b"eSws")),
        changed(lambda final: final.replace(b"c=biws,", b"")),
        # Another proof, half of one, none, and what is no base64.
        changed(lambda final: final.replace(b"p=dHz", b"p=dHy")),
        changed(lambda final: final[:-20]),
        changed(lambda final: final[: final.index(b",p=")]),
        changed(lambda final: final.replace(b"p=d", b"p=\n")),
        # What was proven is not what is sent.
        changed(lambda final: final.replace(b",p=", b",x=y,p=")),
    ],
)
def test_a_last_message_that_proves_nothing(message: bytes):
    one = exchange()
    one.step(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        one.step(message)
    assert not one.is_done
    # The right one comes too late.
    with pytest.raises(AuthenticationFailed, match="is over"):
        one.step(CLIENT_FINAL)
    assert not one.is_done


def test_a_replay_in_another_exchange_fails():
    one = exchange(nonce="another")
    one.step(CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed, match="nonce"):
        one.step(CLIENT_FINAL)


def test_the_other_mechanisms_proof_is_no_proof():
    one = exchange(mechanism=Mechanism.SHA_512)
    client = Client(b"pencil", Mechanism.SHA_256)
    first = one.step(f"n,,{client.bare}".encode())
    with pytest.raises(AuthenticationFailed):
        one.step(client.final(first))
