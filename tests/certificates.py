"""Certificates for tests: an authority of one's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import count
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Signs certificates and writes them as PEM files into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._numbers = count()
        self._certificate = (
            self._begin("headrace tests", self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = self._write("ca.pem", self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str, expired: bool = False) -> tuple[str, str]:
        """Paths of a new certificate for `names` and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._begin(names[0], key, expired=expired)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        number = next(self._numbers)
        return (
            self._write(f"{number}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(
                f"{number}.key",
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            ),
        )

    def _begin(self, common: str, key: ec.EllipticCurvePrivateKey, *, expired: bool = False) -> x509.CertificateBuilder:
        since, until = self.moments(expired=expired)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name("headrace tests"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(until)
        )

    @staticmethod
    def moments(*, expired: bool = False) -> tuple[datetime, datetime]:
        """Since when, and until when, a certificate holds."""
        now = datetime.now(UTC) - timedelta(days=2 * expired)
        return now - timedelta(days=1), now + timedelta(days=1)

    def _write(self, name: str, contents: bytes) -> str:
        path = self._folder / name
        path.write_bytes(contents)
        return str(path)
