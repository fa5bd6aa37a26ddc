"""Settings of the console: flags of `headrace console`, and HEADRACE_CONSOLE_... in the environment."""

from __future__ import annotations

from headrace.addresses import host_names
from headrace.console.addresses import parse_brokers, parse_smtp
from headrace.settings import Settings, setting


class ConsoleSettings(Settings):
    """All of them. Passwords come from the environment alone: a command line can be read by others."""

    listen: str = setting("127.0.0.1:9070", "Where the console listens.", address=True)
    brokers: str = setting(
        "127.0.0.1:9080",
        "The HTTP doors of the brokers: HOST:PORT, or NAME=HOST:PORT,HOST:PORT for the nodes of a "
        "group; spaces between "
        "several brokers.",
        parse=parse_brokers,
        metavar="BROKERS",
    )
    data: str = setting("console-data", "The folder for the history, the alerts and the local users.", metavar="DIR")
    users: str = setting(
        "",
        "A file of local users for brokers without logins: lines of NAME ROLE HASH, written by `headrace console "
        "--add-user`. Empty: DIR/users, if it is there.",
        metavar="FILE",
    )
    read_only: bool = setting(False, "Change nothing, for any user.")
    insecure: bool = setting(
        False, "Accept that other machines reach a console without a login, or with one over plain HTTP."
    )
    hosts: str = setting(
        "", "More names under which browsers may reach the console, with commas between.", parse=host_names
    )
    url: str = setting("", "The address of the console for people, for links in notices.", metavar="URL")
    tls_cert: str = setting("", "A certificate in PEM: the console speaks HTTPS.", metavar="FILE")
    tls_key: str = setting("", "Its key.", metavar="FILE")
    ca: str = setting(
        "", "Certificates in PEM that brokers with TLS are verified by. Empty: the system's.", metavar="FILE"
    )
    session_minutes: int = setting(60, "A login ends when it is not used for so long.", least=1, most=720)
    sessions_max: int = setting(1_000, "At most so many people are logged in at once.", least=1)
    sockets_max: int = setting(200, "At most so many pages are open at once.", least=1)
    history_bytes: int = setting(
        1 << 30, "The history's file is kept below this; what has not moved for longest goes first.", least=1 << 20
    )
    smtp: str = setting(
        "", "HOST:PORT of the mail server for alerts. Empty: no e-mail.", parse=parse_smtp, metavar="HOST:PORT"
    )
    smtp_from: str = setting("headrace@localhost", "The sender of such mail.")
    smtp_user: str = setting("", "The user at the mail server; HEADRACE_CONSOLE_SMTP_PASSWORD has the password.")
    smtp_tls: str = setting("starttls", "How the mail server is reached.", choices=("starttls", "tls", "none"))
    smtp_ca: str = setting(
        "", "Certificates in PEM that the mail server is verified by. Empty: the system's.", metavar="FILE"
    )
    log_level: str = setting("info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error"))
