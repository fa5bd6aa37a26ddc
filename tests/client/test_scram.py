"""The client's half of SCRAM, byte for byte: the example of the RFC, the broker's half, and forged servers."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from headrace.broker.security.credentials import Mechanism as ServerMechanism
from headrace.broker.security.credentials import derive
from headrace.broker.security.identity import Identity
from headrace.broker.security.scram import ScramExchange
from headrace.client import AuthenticationError, Mechanism
from headrace.client.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramClient
from headrace.errors import AuthenticationFailed

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange() -> ScramClient:
    return ScramClient(Mechanism.SCRAM_SHA_256, "user", "pencil", NONCE)


def test_the_example_of_rfc_7677() -> None:
    client = exchange()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.prove(FIRST) == PROOF
    client.check(FINAL)


@pytest.mark.parametrize("mechanism", [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512])
@pytest.mark.parametrize(("user", "password"), [("ann", "blue fish"), ("a=b,c", "=,\u00e9\U0001f41f")])
def test_the_brokers_half_and_the_clients_agree(mechanism: Mechanism, user: str, password: str) -> None:
    theirs = ServerMechanism(mechanism.value)
    found = []

    def finish(name: str, proven: object) -> Identity:
        if proven is None:
            raise AuthenticationFailed("wrong")
        found.append(name)
        return Identity(name, theirs)

    def server() -> ScramExchange:
        return ScramExchange(
            theirs,
            lambda _: derive(password.encode(), {theirs: (b"s" * 16, ITERATIONS_MIN)}),
            finish,
            lambda _, what: AuthenticationFailed(what),
            "server",
        )

    client, broker = ScramClient(mechanism, user, password, NONCE), server()
    client.check(broker.step(client.prove(broker.step(client.first()))))
    assert found == [user]
    wrong, broker = ScramClient(mechanism, user, password + "x", NONCE), server()
    with pytest.raises(AuthenticationFailed):
        broker.step(wrong.prove(broker.step(wrong.first())))


def flipped(final: bytes, bit: int) -> bytes:
    signature = bytearray(b64decode(final[2:]))
    signature[bit // 8] ^= 1 << bit % 8
    return b"v=" + b64encode(signature)


@pytest.mark.parametrize(
    "final",
    [
        *(flipped(FINAL, bit) for bit in (0, 7, 100, 255)),
        b"v=" + b64encode(bytes(32)),
        b"v=" + b64encode(b64decode(FINAL[2:])[:-1]),
        b"v=",
        b"v=%%%",
        b"",
        b"e=other-error",
        FINAL[2:],
        FINAL.upper(),
        b"\xff" + FINAL,
    ],
)
def test_a_server_that_does_not_know_the_password_is_refused(final: bytes) -> None:
    client = exchange()
    client.prove(FIRST)
    with pytest.raises(AuthenticationError):
        client.check(final)


def test_a_server_cannot_end_the_exchange_before_the_proof() -> None:
    with pytest.raises(AuthenticationError):
        exchange().check(b"v=" + b64encode(b""))
    with pytest.raises(AuthenticationError):
        exchange().check(FINAL)


@pytest.mark.parametrize(
    ("first", "word"),
    [
        (FIRST.replace(NONCE.encode(), b"another"), "nonce"),
        (FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "nonce"),
        (FIRST.replace(b"i=4096", b"i=4095"), "iterations"),
        (FIRST.replace(b"i=4096", f"i={ITERATIONS_MAX + 1}".encode()), "iterations"),
        (FIRST.replace(b"i=4096", b"i=" + b"9" * 1000), "iterations"),
        (FIRST.replace(b"i=4096", b"i=-4096"), "iterations"),
        (FIRST.replace(b"i=4096", "i=\u0664\u0660\u0669\u0666".encode()), "iterations"),
        (FIRST.replace(b",i=4096", b""), "form"),
        (FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s="), "Base64"),
        (FIRST.replace(b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s=***"), "Base64"),
        (b"m=more," + FIRST, "form"),
        (b"e=unknown-user", "form"),
        (b"", "form"),
        (b"\xff", "UTF-8"),
    ],
)
def test_what_no_server_says_first_is_refused(first: bytes, word: str) -> None:
    with pytest.raises(AuthenticationError, match=word):
        exchange().prove(first)


def test_iterations_are_taken_at_both_bounds() -> None:
    for count in (ITERATIONS_MIN, ITERATIONS_MAX):
        assert exchange().prove(FIRST.replace(b"i=4096", f"i={count}".encode())).startswith(b"c=biws,")
