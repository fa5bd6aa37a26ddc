"""The certificates of nodes: what a node shows to the others, and what it asks of theirs.

Both sides show one, from an authority that is the nodes' own (`peer_tls_ca`). That alone would let in whatever else
the authority has signed for. So a certificate must also name the host of its node's peer address, as etcd has it: the
follower looks for the host that it connects to, as every TLS client does, and the leader for the host of the node that
the follower says it is. A certificate for another machine, or a client's, opens no session.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from headrace.errors import ConfigError

NO_TLS = "it does not speak TLS. Give all nodes of the group peer_tls_ca, or none"
UNTRUSTED = "it does not accept this node's certificate. Give all nodes certificates of the authority in peer_tls_ca"
NOT_ACCEPTED = (
    "it ended the connection behind the handshake, most likely because it does not accept this node's certificate. Its "
    "log has the reason"
)
# By the names that OpenSSL gives them; others are logged in OpenSSL's words.
REASONS = {
    "HTTP_REQUEST": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "WRONG_VERSION_NUMBER": NO_TLS,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": UNTRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it reports that this node's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": UNTRUSTED,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": UNTRUSTED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": UNTRUSTED,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": UNTRUSTED,
    "TLSV1_ALERT_DECRYPT_ERROR": UNTRUSTED,
    "TLSV1_ALERT_UNKNOWN_CA": UNTRUSTED,
    "UNSUPPORTED_PROTOCOL": "it offers no version of TLS from 1.2 on",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it takes no version of TLS that this node has",
}


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The two sides of one certificate: a node accepts connections with it, and connects."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def load(cert: str, key: str, ca: str) -> PeerTls:
    """From files in PEM. Raises ConfigError, which names the file."""
    return PeerTls(
        _context(ssl.PROTOCOL_TLS_SERVER, cert, key, ca),
        # Checks the host that it connects to.
        _context(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca),
    )


def _context(protocol: int, cert: str, key: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED

    def no_pass_phrase() -> str:
        # OpenSSL would ask on the terminal.
        raise ConfigError(f"the key of the node's certificate, {key}, is encrypted. Give one without a pass phrase.")

    try:
        context.load_cert_chain(cert, key, no_pass_phrase)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{cert} with {key} cannot be the node's certificate: {reason}") from None
    try:
        context.load_verify_locations(ca)
    except OSError as error:
        raise ConfigError(f"peer_tls_ca {ca} cannot be used: {error.strerror or error}") from None
    return context


def reason_of(error: OSError) -> str:
    """Why a connection with a peer did not come about, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return "it hung up. Does it speak TLS, and accept this node's certificate?"


def names_host(certificate: Mapping[str, Any], host: str) -> bool:
    """Whether a certificate, as Python describes one, is for a host: a name, one with a first label of any kind, or an
    address. The common name is not looked at, as in every TLS client."""
    names = certificate.get("subjectAltName", ())
    try:
        address = ip_address(host)
    except ValueError:
        wanted = host.rstrip(".").lower()
        return any(_matches(name.lower(), wanted) for kind, name in names if kind == "DNS")
    return any(kind == "IP Address" and ip_address(name) == address for kind, name in names)


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        first, _, rest = host.partition(".")
        return bool(first) and "." in rest and rest == pattern[2:]
    return pattern == host
