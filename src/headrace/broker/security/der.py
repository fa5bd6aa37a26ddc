"""What a certificate names, read from its DER form, in the words of `SSLObject.getpeercert()`.

Python's TLS gives these by itself. gRPC, which does TLS of its own, gives the whole certificate of a client that it has
verified, and no more of its subject than the common name. Only the subject and its alternative names are read.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from headrace.errors import InvalidCredentials

CERTIFICATE_BYTES_MAX = 65_536
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"

SEQUENCE, SET, OID, OCTETS, BOOLEAN = 0x30, 0x31, 0x06, 0x04, 0x01
VERSION, EXTENSIONS = 0xA0, 0xA3
SUBJECT_ALTERNATIVE_NAMES = "2.5.29.17"
# Of the alternative names, those that a user may have.
KINDS = {0x81: "email", 0x82: "DNS", 0x86: "URI"}
ENCODINGS = {
    0x0C: "utf-8",
    0x12: "ascii",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
# As OpenSSL calls them; the others are written as numbers.
ATTRIBUTES = {
    "2.5.4.3": "commonName",
    "2.5.4.4": "surname",
    "2.5.4.5": "serialNumber",
    "2.5.4.6": "countryName",
    "2.5.4.7": "localityName",
    "2.5.4.8": "stateOrProvinceName",
    "2.5.4.9": "streetAddress",
    "2.5.4.10": "organizationName",
    "2.5.4.11": "organizationalUnitName",
    "2.5.4.12": "title",
    "2.5.4.13": "description",
    "2.5.4.15": "businessCategory",
    "2.5.4.17": "postalCode",
    "2.5.4.41": "name",
    "2.5.4.42": "givenName",
    "2.5.4.43": "initials",
    "2.5.4.44": "generationQualifier",
    "2.5.4.45": "x500UniqueIdentifier",
    "2.5.4.46": "dnQualifier",
    "2.5.4.65": "pseudonym",
    "2.5.4.97": "organizationIdentifier",
    "0.9.2342.19200300.100.1.1": "userId",
    "0.9.2342.19200300.100.1.25": "domainComponent",
    "1.2.840.113549.1.9.1": "emailAddress",
    "1.2.840.113549.1.9.2": "unstructuredName",
    "1.3.6.1.4.1.311.60.2.1.1": "jurisdictionLocalityName",
    "1.3.6.1.4.1.311.60.2.1.2": "jurisdictionStateOrProvinceName",
    "1.3.6.1.4.1.311.60.2.1.3": "jurisdictionCountryName",
}
MALFORMED = "the certificate cannot be read"


@lru_cache(maxsize=1_024)
def names_of(pem: bytes) -> Mapping[str, Any]:
    """Subject and alternative names of a certificate in PEM. Raises InvalidCredentials."""
    if len(pem) > CERTIFICATE_BYTES_MAX:
        raise InvalidCredentials(f"the certificate has {len(pem)} bytes; at most {CERTIFICATE_BYTES_MAX} are read")
    _, begin, rest = pem.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not begin or not end:
        raise InvalidCredentials(MALFORMED)
    try:
        return _names(b64decode(body))
    except (ValueError, IndexError, StopIteration):
        raise InvalidCredentials(MALFORMED) from None


def _names(der: bytes) -> Mapping[str, Any]:
    certificate = _only(der, SEQUENCE)
    fields = list(_elements(_expect(next(_elements(certificate)), SEQUENCE)))
    if fields[0][0] == VERSION:
        del fields[0]
    # Serial number, algorithm, issuer, validity, subject, key.
    subject = tuple(_attributes(part) for part in _elements(_expect(fields[4], SEQUENCE)))
    alternative = [
        name for kind, body in fields[6:] if kind == EXTENSIONS for name in _alternative_names(_only(body, SEQUENCE))
    ]
    return {"subject": subject, "subjectAltName": tuple(alternative)}


def _attributes(part: tuple[int, bytes]) -> tuple[tuple[str, str], ...]:
    """A part of a subject: mostly one attribute."""
    found = []
    for each in _elements(_expect(part, SET)):
        kind, value = _elements(_expect(each, SEQUENCE))
        number = _write_oid(_expect(kind, OID))
        if value[0] not in ENCODINGS:
            raise InvalidCredentials(MALFORMED)
        found.append((ATTRIBUTES.get(number, number), value[1].decode(ENCODINGS[value[0]])))
    return tuple(found)


def _alternative_names(extensions: bytes) -> Iterator[tuple[str, str]]:
    for each in _elements(extensions):
        kind, *rest = _elements(_expect(each, SEQUENCE))
        if _write_oid(_expect(kind, OID)) == SUBJECT_ALTERNATIVE_NAMES:
            # Whether it is critical may stand before it.
            names = _only(_expect(rest[-1], OCTETS), SEQUENCE)
            yield from ((KINDS[tag], value.decode("ascii")) for tag, value in _elements(names) if tag in KINDS)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements that stand one behind the other: tag and contents."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            # No length without an end, and none that is longer than the certificate may be.
            if not 1 <= count <= 4 or tag & 0x1F == 0x1F:
                raise InvalidCredentials(MALFORMED)
            size = int.from_bytes(data[at : at + count])
            at += count
        if at + size > len(data):
            raise InvalidCredentials(MALFORMED)
        yield tag, data[at : at + size]
        at += size


def _only(data: bytes, tag: int) -> bytes:
    """The contents of the one element that there is."""
    elements = list(_elements(data))
    if len(elements) != 1:
        raise InvalidCredentials(MALFORMED)
    return _expect(elements[0], tag)


def _expect(element: tuple[int, bytes], tag: int) -> bytes:
    if element[0] != tag:
        raise InvalidCredentials(MALFORMED)
    return element[1]


def _write_oid(data: bytes) -> str:
    """An object identifier as numbers with dots."""
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
