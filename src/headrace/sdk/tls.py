"""TLS, as a URL asks for it: which authorities to trust, and which certificate to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OPTIONS = {"tls", "tls_ca", "tls_cert", "tls_key"}


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM."""

    ca: str = ""
    """Empty: the authorities that the machine trusts."""
    cert: str = ""
    key: str = ""

    def librdkafka(self) -> dict[str, str]:
        """For Kafka's own library."""
        settings = {
            "security.protocol": "SSL",
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.cert,
            "ssl.key.location": self.key,
        }
        return {name: value for name, value in settings.items() if value}


def parse_tls(url: str, options: Mapping[str, str]) -> Tls | None:
    """What the options of a URL ask for. Raises ValueError."""
    if options.get("tls", "1") not in ("0", "1"):
        raise ValueError(f"{url!r}: tls must be 1 or 0")
    files = Tls(options.get("tls_ca", ""), options.get("tls_cert", ""), options.get("tls_key", ""))
    if bool(files.cert) != bool(files.key):
        raise ValueError(f"{url!r}: tls_cert and tls_key go together: give both, or neither")
    asked = options.get("tls") == "1" or files != Tls()
    if asked and options.get("tls") == "0":
        raise ValueError(f"{url!r} gives files for TLS and turns it off. Remove tls=0, or the files")
    return files if asked else None
