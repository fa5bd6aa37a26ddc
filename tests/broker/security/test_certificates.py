"""Names in client certificates, and the rules that map them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority

from headrace.broker.broker import Broker
from headrace.broker.security import Session
from headrace.broker.security.certificates import DEFAULT, CertificateNames, Rule, parse_rules
from headrace.config import Config
from headrace.errors import AuthenticationFailed, ConfigError, InvalidCredentials

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Example, Inc."),),
    (("organizationalUnitName", "ServiceUsers"),),
    (("commonName", "Ann"),),
)
WRITTEN = "CN=Ann,OU=ServiceUsers,O=Example\\, Inc.,C=DE"


def name(rules: str = "DEFAULT", subject: Any = SUBJECT, source: str = "subject", **more: Any) -> str:
    return CertificateNames(source, rules).name({"subject": subject, **more})


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ("DEFAULT", WRITTEN),
        ("", WRITTEN),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "Ann"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "ann"),
        ("RULE:CN=(.*?),OU=(.*?),.*/$1@$2/U, DEFAULT", "ANN@SERVICEUSERS"),
        ("RULE:CN=bob.*/bob/,DEFAULT", WRITTEN),
        ("RULE:CN=bob.*/bob/ , RULE:CN=(.*?),.*/$1/", "Ann"),
        # Two that agree.
        ("RULE:CN=(.*?),.*/$1/,RULE:.*CN=([^,]*).*/$1/", "Ann"),
        # The pattern must fit the whole subject, and once: Java's replaceAll would find an empty end, too.
        ("RULE:(.*)/x/", "x"),
        (r"RULE:CN=(\w+),.*/a\/$1\$/", "a/Ann$"),
    ],
)
def test_rules(rules: str, found: str):
    assert name(rules) == found


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:CN=bob.*/bob/",
        "RULE:CN=/x/",
        # Two that do not agree: which comes first must not decide.
        "RULE:CN=(.*?),.*/$1/,RULE:.*OU=(.*?),.*/$1/",
        "RULE:CN=(.*?),.*/$1/,RULE:CN=(.*?),.*/$1/L,DEFAULT",
        # What they make cannot be a user.
        "RULE:.*//",
        "RULE:.*/*/",
        "RULE:.*/ANONYMOUS/",
    ],
)
def test_subjects_without_a_name(rules: str):
    with pytest.raises(InvalidCredentials):
        name(rules)


def test_a_subject_cannot_pretend_to_be_another():
    # In the value of one attribute.
    crafted = ((("organizationName", "x"),), (("commonName", "eve,OU=Admins"),))
    assert name(subject=crafted) == "CN=eve\\,OU=Admins,O=x"
    with pytest.raises(InvalidCredentials, match="fits none"):
        name(r"RULE:CN=(\w+),OU=Admins.*/$1/", crafted)
    several = ((("commonName", "root"),), (("commonName", "eve"),))
    with pytest.raises(InvalidCredentials, match="several common names"):
        name("RULE:.*CN=([^,]*)/$1/", several)
    assert name(subject=several) == "CN=eve,CN=root"
    assert name(subject=((("commonName", "a"), ("userId", " #b ")),)) == "CN=a+UID=\\ #b\\ "
    with pytest.raises(InvalidCredentials, match="no subject"):
        name(subject=())


def test_names_beside_the_subject():
    names = (("DNS", "a.example"), ("email", "ann@example.com"), ("URI", "spiffe://example/ann"), ("DNS", "a.example"))
    for source, found in (("dns", "a.example"), ("email", "ann@example.com"), ("uri", "spiffe://example/ann")):
        assert name(source=source, subjectAltName=names) == found
    for several in ((*names, ("DNS", "b.example")), ()):
        with pytest.raises(InvalidCredentials, match="certificate_user takes one"):
            name(source="dns", subjectAltName=several)


def test_how_rules_are_written():
    assert parse_rules(r"RULE:a\/b,c/$1,\/x/U,RULE:d/e/,DEFAULT") == [
        *(Rule("a/b,c", "$1,/x", "U"), Rule("d", "e")),
        DEFAULT,
    ]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("RULE:a/b", "a slash is missing"),
        ("RULE:a", "a slash is missing"),
        ("RULE:a\\/b\\/", "a slash is missing"),
        ("CN", "a rule is RULE:"),
        ("RULE:a/b/X", "commas"),
        ("DEFAULT DEFAULT", "commas"),
        ("DEFAULT,RULE:a/b/", "never asked"),
        ("DEFAULT,DEFAULT", "never asked"),
        ("RULE:a/b/,RULE:a/b/", "twice"),
        ("RULE:(/b/", "not a regular expression"),
        ("RULE:(?=a)/b/", "not a regular expression"),
        ("RULE:(a)/$2/", "no group 2"),
    ],
)
def test_rules_that_are_none(rules: str, message: str):
    with pytest.raises(ConfigError, match=message):
        Config(certificate_rules=rules)


async def test_a_real_certificate(broker: Broker, tmp_path: Path):
    """As `ssl` shows it to a server, after a handshake."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("ann", "ann.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(str(tmp_path / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.check_hostname = False
    client.load_cert_chain(certificate, key)
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    near = client.wrap_bio(pipes[0], pipes[1])
    far = context.wrap_bio(pipes[1], pipes[0], server_side=True)
    for _ in range(4):
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    peer = far.getpeercert()
    assert peer is not None
    identity = broker.security.authenticator.certificate(peer, Session())
    assert (identity.user, identity.how) == ("CN=ann", "certificate")
    with pytest.raises(AuthenticationFailed, match="no subject"):
        broker.security.authenticator.certificate({}, Session())
