"""As whom a client certificate shows its bearer: by its subject and Kafka's mapping rules, or by a name in its SAN.

The TLS layer has verified the certificate's whole chain by then. A subject is written as RFC 2253 has it, as in
`CN=ann,OU=billing,O=Example,C=DE`; attributes that it does not name are written as OpenSSL names them. A rule is
`RULE:PATTERN/REPLACEMENT/` with `L` or `U` behind it to change the case; `DEFAULT` is the whole subject. Kafka takes
the first rule that fits. Here two that fit and give different names are an error, and so is a rule for a subject with
several common names: whoever gets to choose one of them would choose its user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.broker.security.rules import ANY
from headrace.broker.security.session import ANONYMOUS
from headrace.errors import ConfigError, InvalidCredentials

SUBJECT = "subject"
# As the SAN's kinds are called by `ssl`.
SAN = {"dns": "DNS", "email": "email", "uri": "URI"}
NAME_CHARACTERS_MAX = 1_024

_KEYWORDS = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_CASES: Mapping[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}

PeerCertificate = Mapping[str, Any]
"""What `SSLObject.getpeercert()` gives."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A mapping rule, as it is written."""

    pattern: str
    replacement: str
    case: str = ""


DEFAULT = Rule("", "")


def parse_rules(text: str) -> list[Rule]:
    """The rules of a text. Raises ConfigError."""
    rules: list[Rule] = []
    rest = text.strip()
    while rest:
        if rules and rules[-1] is DEFAULT:
            raise ConfigError("certificate_rules: what follows DEFAULT is never asked. Put it at the end.")
        if rest.startswith("DEFAULT"):
            rules.append(DEFAULT)
            rest = rest.removeprefix("DEFAULT")
        elif rest.startswith("RULE:"):
            pattern, after = _until_slash(rest.removeprefix("RULE:"))
            replacement, after = _until_slash(after)
            case = after[:1] if after[:1] in ("L", "U") else ""
            rule = Rule(pattern, replacement, case)
            if rule in rules:
                raise ConfigError(f"certificate_rules has a rule twice (RULE:{pattern}/...). Remove one.")
            rules.append(rule)
            rest = after[len(case) :]
        else:
            raise ConfigError(
                f"certificate_rules: a rule is RULE:PATTERN/REPLACEMENT/[LU] or DEFAULT (got '{rest[:80]}')"
            )
        rest = rest.lstrip()
        if rest and not rest.startswith(","):
            raise ConfigError(f"certificate_rules: rules have commas between them (got '{rest[:80]}')")
        rest = rest[1:].lstrip()
    return rules or [DEFAULT]


def _until_slash(text: str) -> tuple[str, str]:
    """What is before the next slash that is not escaped, and what is behind it."""
    at = 0
    while at < len(text) and text[at] != "/":
        at += 2 if text[at] == "\\" else 1
    if at >= len(text):
        raise ConfigError("certificate_rules: a rule is RULE:PATTERN/REPLACEMENT/[LU], and a slash is missing")
    return text[:at].replace("\\/", "/"), text[at + 1 :]


class CertificateNames:
    """Names the bearers of certificates."""

    def __init__(self, source: str, rules: str) -> None:
        """Raises ConfigError."""
        self._source = source
        parsed = parse_rules(rules)
        self._has_default = DEFAULT in parsed
        self._converters = [_converter(each) for each in parsed if each is not DEFAULT]

    def name(self, certificate: PeerCertificate) -> str:
        """The user that a certificate shows. Raises InvalidCredentials."""
        name = self._by_subject(certificate) if self._source == SUBJECT else self._by_san(certificate)
        if not 0 < len(name) <= NAME_CHARACTERS_MAX or name in (ANY, ANONYMOUS) or not name.isprintable():
            raise InvalidCredentials("the certificate's name cannot be a user's")
        return name

    def _by_san(self, certificate: PeerCertificate) -> str:
        kind = SAN[self._source]
        names = {value for key, value in certificate.get("subjectAltName", ()) if key == kind}
        if len(names) != 1:
            raise InvalidCredentials(
                f"the certificate has {len(names)} names of the kind {self._source}, and certificate_user takes one"
            )
        return str(names.pop())

    def _by_subject(self, certificate: PeerCertificate) -> str:
        subject = certificate.get("subject", ())
        written = write_subject(subject)
        if not written:
            raise InvalidCredentials("the certificate has no subject")
        names = {name for convert in self._converters if (name := convert(written)) is not None}
        if len(names) > 1:
            raise InvalidCredentials("the certificate's subject fits several rules, which give it different names")
        if names:
            common = [each for part in subject for each in part if each[0] == "commonName"]
            if len(common) > 1:
                raise InvalidCredentials("the certificate's subject has several common names, and a rule takes one")
            return names.pop()
        if not self._has_default:
            raise InvalidCredentials("the certificate's subject fits none of certificate_rules")
        return written


def write_subject(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """A subject as RFC 2253 has it: the last part first."""
    parts = ("+".join(f"{_KEYWORDS.get(name, name)}={_escape(value)}" for name, value in part) for part in subject)
    return ",".join(reversed(list(parts)))


def _escape(value: str) -> str:
    """What has a meaning in a subject must not be taken for it."""
    escaped = "".join(f"\\{each}" if each in ',+"\\<>;' else each for each in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if len(escaped) > 1 and escaped.endswith(" "):
        escaped = escaped[:-1] + "\\ "
    return escaped


def _converter(rule: Rule) -> Callable[[str], str | None]:
    """What a rule makes of a subject; None where it does not fit."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(rule.pattern, options)
    except re2.error:
        raise ConfigError(f"certificate_rules: '{rule.pattern}' is not a regular expression in RE2's syntax") from None
    parts = _parts_of(rule, pattern.groups)

    def convert(subject: str) -> str | None:
        found = pattern.fullmatch(subject)
        if found is None:
            return None
        return _CASES[rule.case]("".join(each if isinstance(each, str) else found[each] or "" for each in parts))

    return convert


def _parts_of(rule: Rule, groups: int) -> list[str | int]:
    """A replacement as texts and numbers of groups: `$1@example`."""
    parts: list[str | int] = []
    text = rule.replacement
    at = 0
    while at < len(text):
        if text[at] == "$" and text[at + 1 : at + 2].isdecimal():
            if int(text[at + 1]) > groups:
                raise ConfigError(f"certificate_rules: '{rule.pattern}' has no group {text[at + 1]}")
            parts.append(int(text[at + 1]))
            at += 2
        else:
            at += text[at] == "\\" and at + 1 < len(text)
            parts.append(text[at])
            at += 1
    return parts
