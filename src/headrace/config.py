"""The broker's configuration: the settings of every layer and door, composed into one.

Each field is a flag of `headrace serve`, a key of the TOML file and an environment variable (`HEADRACE_` and the name
in capitals). The field's metadata (`headrace.settings`) carries the sentence that `--help` and `docs/configuration.md`
print, and the values that fit. `resolve` merges the sources, the nearest to the command line winning; an error names
the source at fault. Topics have settings of their own (`headrace.broker.topic_config`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

from headrace.addresses import host_names, parse_address
from headrace.broker.settings import BrokerSettings, NodeSettings
from headrace.cluster.settings import ClusterSettings
from headrace.doors.absent import AbsentSettings
from headrace.doors.http.settings import HttpSettings
from headrace.doors.kafka.settings import KafkaSettings, listeners_of
from headrace.doors.nsq.settings import NsqSettings
from headrace.doors.rocketmq.settings import RocketMqSettings
from headrace.doors.settings import SharedSettings
from headrace.errors import ConfigError
from headrace.redaction import HIDDEN
from headrace.settings import HOST_PORT, Settings, check, convert, setting
from headrace.targets import local_path

ENVIRONMENT_PREFIX = "HEADRACE_"


class Config(
    BrokerSettings,
    SharedSettings,
    ClusterSettings,
    AbsentSettings,
    RocketMqSettings,
    NsqSettings,
    HttpSettings,
    KafkaSettings,
    NodeSettings,
):
    """All settings of one broker. Fields of the last base come first: that is the order in `--help` and in the docs."""

    TITLE = "Logging and console"

    log_level: str = setting("info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error"))
    console: str = setting(
        "off",
        "HOST:PORT where the console listens, in a process of its own beside the broker (console.md), or `off`. "
        "Needs the extra `headrace[console]`.",
        parse=parse_address,
        metavar=HOST_PORT,
    )
    log_format: str = setting(
        "auto",
        "console or json; auto: console on a terminal, json elsewhere.",
        choices=("auto", "console", "json"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nsq_tls_required and not self.tls_cert:
            raise ConfigError("nsq_tls_required needs tls_cert and tls_key: without them no client could connect")
        if self.http_tls and not self.tls_cert:
            raise ConfigError("http_tls needs tls_cert and tls_key: there is no certificate to show to clients")

        for each in listeners_of(self, has_certificate=bool(self.tls_cert)):
            each.check(has_certificate=bool(self.tls_cert), plain_without_tls=self.sasl_plain_without_tls)
        if self.cluster and self.peer_tls_ca and not (self.peer_tls_cert or self.tls_cert):
            raise ConfigError("peer_tls_ca needs a certificate: give peer_tls_cert and peer_tls_key")

    @property
    def host_names(self) -> frozenset[str]:
        """The names of the broker that its settings have: those of its addresses, and those that `http_hosts` adds."""
        addresses = [getattr(self, each.name) for each in fields(self) if each.metadata["address"]]
        for each in listeners_of(self, has_certificate=bool(self.tls_cert)):
            addresses += [each.address, each.advertised]
        hosts = (parse_address(each) for each in (*addresses, self.rocketmq_advertised) if each)
        names = (host[0] for host in hosts if host is not None)
        return frozenset((self.nsq_broadcast, *names, *host_names(self.http_hosts)))


SETTINGS = tuple(each.name for each in fields(Config))


def resolve(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
    file_name: str = "the file",
    settings: type[Config] = Config,
) -> Config:
    """One configuration from its sources: a flag wins over the environment, that over the file, that over the default.

    `flags` is by field name. `environment` is the process's own, of which only the known names are read, because other
    variables may begin with the same prefix. A key of the file that is not known is an error: it is likely a slip.
    """
    known = {each.name: each for each in fields(settings)}
    for key in file:
        if key not in known:
            raise ConfigError(f"{file_name}: {no_setting(key)}")
    values: dict[str, Any] = {}
    for name, each in known.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if name in flags:
            source, value = flag_name(name), flags[name]
        elif variable in environment:
            source, value = variable, environment[variable]
        elif name in file:
            source, value = f"{file_name}: {name}", file[name]
        else:
            continue
        values[name] = check(each, convert(each, value, source), source)
        if name == "data" and not value:
            # Such as of a variable that is not set; as a path it would be the current directory.
            raise ConfigError(f"{source}: the empty text names no directory")
        if name == "data":
            values[name] = local_path(value, source)
    return settings(**values)


def no_setting(name: str) -> str:
    """What to say of a name that no field has."""
    return f"there is no setting {name!r}{meant(name, SETTINGS)}; `headrace serve --help` lists them"


def meant(name: str, known: Iterable[str]) -> str:
    """A guess at what a slip was meant to be, to be put behind it."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def flag_name(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def command_line(config: Config) -> list[str]:
    """A command that starts a broker with these settings; those that are secret are hidden."""
    flags = []
    for known in fields(config):
        value = getattr(config, known.name)
        if value != known.default:
            shown = HIDDEN if known.metadata["secret"] else str(value).lower() if known.type == "bool" else str(value)
            flags.append(f"{flag_name(known.name)}={shown}")
    return ["headrace", "serve", *flags]


def sections(settings: type[Config] = Config) -> dict[str, list[Field[Any]]]:
    """The fields, in their order, by the title of the part that each is of."""
    parts = [each for each in reversed(settings.__mro__) if issubclass(each, Settings)]
    owners = {name: part.TITLE for part in parts for name in part.__annotations__}
    found: dict[str, list[Field[Any]]] = {}
    for each in fields(settings):
        found.setdefault(owners[each.name], []).append(each)
    return found


def settings_table() -> str:
    """All settings as Markdown tables, for `docs/configuration.md`."""
    tables = []
    for title, known in sections().items():
        rows = [f"### {title}", "", "| setting | default | what it means |", "| --- | --- | --- |"]
        for each in known:
            default = str(each.default).lower() if isinstance(each.default, bool) else str(each.default)
            rows.append(f"| `{each.name}` | {f'`{default}`' if default else ''} | {each.metadata['help']} |")
        tables.append("\n".join(rows) + "\n")
    return "\n".join(tables)
