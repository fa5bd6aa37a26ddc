"""The settings of identities and rights (`headrace.broker.security`). They stand beside that package, because the
settings of the broker, which it imports, are composed of them."""

from __future__ import annotations

from headrace.settings import Settings, setting


class SecuritySettings(Settings):
    """Who may do what."""

    authorization: str = setting(
        "off",
        "Whether what a client does takes a right. log-only reports what `on` would refuse, and allows it.",
        choices=("off", "log-only", "on"),
    )
    super_users: str = setting(
        "", "Users that may do everything, whatever the rules say: names with a semicolon between.", metavar="NAMES"
    )
    authorization_cache_max: int = setting(
        65_536, "Decisions of `authorization` that are remembered; with more, all are made anew.", least=1
    )
    authentication_delay_max_ms: int = setting(
        5_000, "The longest that the answer to a failed authentication is delayed; it doubles with each failure."
    )
    authentication_failures_max: int = setting(
        10_000, "Users and addresses whose failed authentications are counted; the oldest is forgotten first.", least=1
    )
    authentication_waiting_max: int = setting(
        1_000, "Passwords that may wait to be verified at once; more are refused, to be tried again.", least=1
    )
    audit: str = setting(
        "auto",
        "Whether who does what is written to the topic __audit and to the log; auto: where `authorization` is not off.",
        choices=("auto", "off", "on"),
    )
    audit_reads: bool = setting(False, "Whether that has what is read, too: one entry for many reads of the same.")
    audit_entries_max: int = setting(
        10_000,
        "Entries that wait to be written to __audit; more are dropped, and counted. Refusals take half of it at most.",
        least=2,
    )
    users_max: int = setting(10_000, "Users at a time.", least=1)
    tokens_max: int = setting(10_000, "API tokens at a time.", least=1)
    rules_max: int = setting(20_000, "Rules at a time, those of roles counted in.", least=1)
