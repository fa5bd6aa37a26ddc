"""The settings of identities and rights (`headrace.broker.security`). They stand beside that package, because the
settings of the broker, which it imports, are composed of them."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.settings import Settings, setting

# Those with a public key. With any other, whoever can verify could sign.
JWT_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)


class CertificateSettings(Settings):
    """As whom a client certificate shows its bearer."""

    TITLE = "Users by client certificates"

    certificate_user: str = setting(
        "subject",
        "Which name of a client certificate is the user: its subject, as certificate_rules maps it, or its one DNS "
        "name, e-mail address or URI.",
        choices=("subject", "dns", "email", "uri"),
    )
    certificate_rules: str = setting(
        "DEFAULT",
        "How the subject of a client certificate becomes a user: RULE:PATTERN/REPLACEMENT/[LU] as in Kafka's "
        "ssl.principal.mapping.rules, with commas between; DEFAULT: the whole subject.",
        metavar="RULES",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.certificate_rules != "DEFAULT":
            # Commands must not wait for the import where there is nothing to judge.
            from headrace.broker.security.certificates import CertificateNames

            CertificateNames(self.certificate_user, self.certificate_rules)


class JwtSettings(Settings):
    """Signed tokens of an identity provider."""

    TITLE = "Signed tokens (JWT)"

    jwt_keys: str = setting(
        "", "The public keys that verify signed tokens (JWT): a JWKS, as a file or an https URL.", metavar="FILE_OR_URL"
    )
    jwt_issuer: str = setting("", "The issuer (iss) that tokens must have.")
    jwt_audience: str = setting("", "The audience (aud) that tokens must be for.")
    jwt_algorithms: str = setting(
        "RS256;ES256", "The algorithms that tokens may be signed with, with a semicolon between.", metavar="NAMES"
    )
    jwt_clock_skew_ms: int = setting(
        30_000, "How far the clock of a token's issuer may differ from this machine's.", most=300_000
    )
    jwt_user_claim: str = setting("sub", "The claim of a token that names the user.")
    jwt_scope_claim: str = setting(
        "",
        "The claim of a token that limits what it may be used for, by scopes such as write:topic:orders*. Other "
        "words in it are ignored; without a scope the token permits nothing. Empty: tokens are not limited.",
    )
    jwt_refresh_ms: int = setting(3_600_000, "How often the keys are read again.", least=1)
    jwt_refetch_ms: int = setting(
        30_000, "How soon the keys may be read again for a token whose key is unknown.", least=1
    )

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Of tokens."""
        return tuple(each.strip() for each in self.jwt_algorithms.split(";") if each.strip())

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [each for each in self.algorithms if each not in JWT_ALGORITHMS]
        if wrong or not self.algorithms:
            raise ConfigError(f"jwt_algorithms has {wrong or 'none'}: choose from {', '.join(JWT_ALGORITHMS)}")
        if not self.jwt_keys:
            return
        if not self.jwt_issuer or not self.jwt_audience:
            raise ConfigError("jwt_keys needs jwt_issuer and jwt_audience: tokens for other services must be refused")
        scheme, _, rest = self.jwt_keys.partition("://")
        host = rest.partition("/")[0].rpartition(":")[0] or rest.partition("/")[0]
        if rest and scheme != "https" and not (scheme == "http" and host in ("127.0.0.1", "[::1]", "localhost")):
            raise ConfigError(f"jwt_keys is a file or an https URL (got {scheme}://...)")


class SecuritySettings(JwtSettings, CertificateSettings):
    """Who may do what."""

    TITLE = "Users and rights"

    authorization: str = setting(
        "off",
        "Whether operations of clients need rights. log-only reports what `on` would refuse, and allows it.",
        choices=("off", "log-only", "on"),
    )
    super_users: str = setting(
        "", "Users that may do everything, whatever the rules say: names with a semicolon between.", metavar="NAMES"
    )
    authorization_cache_max: int = setting(
        65_536, "Decisions of `authorization` that are cached; above it the cache is emptied.", least=1
    )
    authentication_delay_max_ms: int = setting(
        5_000, "The longest that the answer to a failed authentication is delayed; it doubles with each failure."
    )
    authentication_failures_max: int = setting(
        10_000, "Users and addresses whose failed authentications are counted; the oldest are evicted.", least=1
    )
    authentication_waiting_max: int = setting(
        1_000, "Passwords that may wait to be verified at once; more are refused, and clients try again.", least=1
    )
    audit: str = setting(
        "auto",
        "Whether logins, refusals and changes are written to the topic __audit and to the log; auto: if "
        "`authorization` is not off.",
        choices=("auto", "off", "on"),
    )
    audit_reads: bool = setting(False, "Whether the audit records reads, too: one entry for many reads of the same.")
    audit_entries_max: int = setting(
        10_000,
        "Entries that wait to be written to __audit; more are dropped, and counted. Refusals take half of it at most.",
        least=2,
    )
    users_max: int = setting(10_000, "The most users.", least=1)
    tokens_max: int = setting(10_000, "The most API tokens.", least=1)
    rules_max: int = setting(20_000, "The most rules, including those of roles.", least=1)
