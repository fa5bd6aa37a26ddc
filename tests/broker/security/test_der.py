"""Certificates' names beside Python's own reading of them."""

from __future__ import annotations

import random
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certificates import Authority

from headrace.broker.security import der
from headrace.errors import InvalidCredentials

# Also names that no authority should give.
pytestmark = pytest.mark.filterwarnings("ignore:Attribute's length must be")

KEY = ec.generate_private_key(ec.SECP256R1())
TEXT = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40
)
NUMBERS = [ObjectIdentifier(each) for each in der.ATTRIBUTES]
OTHERS = st.sampled_from([*NUMBERS, ObjectIdentifier("1.3.6.1.4.1.99999.7"), ObjectIdentifier("2.999.5")])
HOSTS = st.from_regex(r"\A[a-z]{1,20}(\.[a-z]{1,20}){0,3}\Z")


def certificate(subject: list[list[tuple[ObjectIdentifier, str]]], *names: x509.GeneralName) -> x509.Certificate:
    parts = [
        x509.RelativeDistinguishedName(
            [
                x509.NameAttribute(kind, value, _ASN1Type.UTF8String, _validate=False)
                for kind, value in dict(part).items()
            ]
        )
        for part in subject
    ]
    begin = x509.CertificateBuilder().subject_name(x509.Name(parts)).issuer_name(x509.Name([]))
    begin = begin.public_key(KEY.public_key()).serial_number(7)
    moments = Authority.moments()
    begin = begin.not_valid_before(moments[0]).not_valid_after(moments[1])
    begin = begin.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if names:
        begin = begin.add_extension(x509.SubjectAlternativeName(names), critical=random.random() < 0.5)
    return begin.sign(KEY, hashes.SHA256())


def by_python(pem: bytes, folder: Path) -> dict[str, Any]:
    path = folder / "certificate.pem"
    path.write_bytes(pem)
    found: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@given(st.lists(st.lists(st.tuples(OTHERS, TEXT), min_size=1, max_size=3), max_size=6), st.lists(HOSTS, max_size=4))
@settings(max_examples=150, deadline=None)
def test_names_are_those_that_python_reads(
    folder: Path, subject: list[list[tuple[ObjectIdentifier, str]]], hosts: list[str]
) -> None:
    kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier)
    names = [kinds[number % 3](each if number % 3 != 1 else f"a@{each}") for number, each in enumerate(hosts)]
    pem = certificate(subject, *names).public_bytes(serialization.Encoding.PEM)
    expected = by_python(pem, folder)
    found = der.names_of(pem)
    assert found["subject"] == expected.get("subject", ())
    assert found["subjectAltName"] == expected.get("subjectAltName", ())


def test_every_attribute_is_called_as_openssl_calls_it(folder: Path) -> None:
    subject = [[(each, "DE")] for each in NUMBERS]
    pem = certificate(subject).public_bytes(serialization.Encoding.PEM)
    assert der.names_of(pem)["subject"] == by_python(pem, folder)["subject"]


def test_a_name_with_a_zero_in_it_stays_whole() -> None:
    """Not the name before it, which may be somebody else's."""
    pem = certificate([[(NameOID.COMMON_NAME, "ann\0.example")]]).public_bytes(serialization.Encoding.PEM)
    assert der.names_of(pem)["subject"] == ((("commonName", "ann\0.example"),),)


WHOLE = certificate([[(NameOID.COMMON_NAME, "ann")]], x509.DNSName("a.b")).public_bytes(serialization.Encoding.DER)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_broken_is_refused_or_read(data: st.DataObject) -> None:
    raw = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    with suppress(InvalidCredentials):
        der.names_of(ssl.DER_cert_to_PEM_cert(bytes(cut)).encode())
    with suppress(InvalidCredentials):
        der.names_of(data.draw(st.binary(max_size=300)))


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----", bytes(der.CERTIFICATE_BYTES_MAX + 1)])
def test_what_is_no_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(InvalidCredentials):
        der.names_of(pem)
