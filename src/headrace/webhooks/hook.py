"""What one URL is given, and how: the settings of a webhook, checked, and the secrets that sign it."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

from headrace.client.tls import client_context
from headrace.sdk.names import QUEUE_MAX, check_name
from headrace.webhooks.event import Form
from headrace.webhooks.signature import key_of

TIMEOUT_MAX = 120.0
BATCH_MAX = 1_000
WORKERS_MAX = 1_000
STEPS_MAX = 100
# Ten attempts take more than seven hours: longer than most incidents, and shorter than a night.
LADDER = (5.0, 30.0, 120.0, 600.0, 1_800.0, 3_600.0, 7_200.0)
ATTEMPTS = 10
# In order: short, because all that follows of the same key waits.
LADDER_ORDERED = (1.0, 5.0, 30.0)
ATTEMPTS_ORDERED = 0
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
# Headers that are signed, or that delimit the body, cannot be set twice.
TAKEN = ("webhook-", "ce-", "content-length", "transfer-encoding", "connection", "expect", "upgrade")
DEFAULT_PORTS = {"http": 80, "https": 443}


class Secrets:
    """The secrets that requests are signed with. Those of a file are read again when it has changed, so that a secret
    can be replaced while the process runs: the old one and the new one stand in it together for a while."""

    def __init__(self, given: Sequence[str] = (), file: Path | None = None) -> None:
        """Raises ValueError and OSError."""
        self._file = file
        self._keys = [key_of(each) for each in given]
        self._fixed = len(self._keys)
        self._stamp: tuple[int, int, int] | None = None
        if file is not None:
            self._read(file)

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self) -> list[bytes]:
        """The secrets as they are now. Raises ValueError and OSError where the file became unusable; the last that
        could be used are kept."""
        if self._file is not None and _stamp(self._file) != self._stamp:
            self._read(self._file)
        return self._keys

    def last(self) -> list[bytes]:
        """The secrets that were read last."""
        return self._keys

    def _read(self, file: Path) -> None:
        stamp = _stamp(file)
        lines = [line.strip() for line in file.read_text().splitlines()]
        keys = [key_of(line) for line in lines if line and not line.startswith("#")]
        if not keys:
            raise ValueError(f"{file} holds no secret. Write one on each line")
        self._keys = [*self._keys[: self._fixed], *keys]
        self._stamp = stamp


def _stamp(file: Path) -> tuple[int, int, int]:
    found = os.stat(file)
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, slots=True)
class Hook:
    """One URL."""

    url: str
    group: str = ""
    """The queue that it is pushed from; empty: called after the URL."""
    secrets: Secrets | None = None
    """None: its requests are not signed."""
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    workers: int = 8
    """Requests at a time."""
    rate: float = 0.0
    """Messages a second; 0: no limit."""
    timeout: float = 15.0
    """Seconds for a request and its answer."""
    attempts: int = ATTEMPTS
    """Deliveries before a message is given up; 0: no limit."""
    ladder: tuple[float, ...] = LADDER
    """Seconds before each further delivery."""
    batch: int = 0
    """The most messages in a request; 0: one, and not in a batch."""
    batch_wait: float = 0.05
    """Seconds that a batch waits to fill."""
    ordered: bool = False
    from_now: bool = False
    """A queue that is new begins with what comes from now on."""
    filter: str | None = None
    form: Form = field(default_factory=Form)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure: bool = False
    allow_private: bool = False
    """The name in the URL may lead to private addresses."""

    def __post_init__(self) -> None:
        """Raises ValueError."""
        parts = _parts(self.url)
        if not self.group:
            object.__setattr__(self, "group", group_of(self.url))
        check_name("group", self.group, QUEUE_MAX)
        for name, value, least, most in (
            ("workers", self.workers, 1, WORKERS_MAX),
            ("batch", self.batch, 0, BATCH_MAX),
            ("attempts", self.attempts, 0, 65_535),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} must be {least} to {most} (got {value})")
        if not 0.05 <= self.timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout must be 50 ms to {TIMEOUT_MAX:g} s (got {self.timeout:g} s)")
        if self.rate < 0 or self.batch_wait < 0 or any(step < 0 for step in self.ladder):
            raise ValueError("rate, batch_wait and the steps of the ladder must be 0 or more")
        if len(self.ladder) > STEPS_MAX:
            raise ValueError(f"the ladder must have {STEPS_MAX} steps at most (got {len(self.ladder)})")
        for name, text in self.headers.items():
            if not TOKEN.fullmatch(name) or not VALUE.fullmatch(text):
                raise ValueError(f"{name!r} is not a header that can be sent, or its value cannot be")
            if name.lower().startswith(TAKEN):
                raise ValueError(f"the header {name} is reserved. Leave it out")
        if self.batch and self.form.structured:
            raise ValueError("batch and structured exclude each other: a batch is always structured")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("a client's certificate and its key go together: give both, or neither")
        if parts.scheme == "http" and (self.ca_file or self.cert_file or self.insecure):
            raise ValueError(f"{self.url} does not use TLS: leave out authorities, certificates and insecure")
        if self.insecure and self.ca_file:
            raise ValueError("insecure and authorities exclude each other: insecure accepts any certificate")

    @property
    def messages(self) -> int:
        """Messages that are in requests at a time."""
        return self.workers * max(self.batch, 1)

    def tls(self) -> ssl.SSLContext | bool:
        """How the endpoint is authenticated. Raises ConfigError where a file cannot be used."""
        if not (self.ca_file or self.cert_file or self.insecure):
            return True
        context = client_context(self.ca_file, self.cert_file, self.key_file)
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def group_of(url: str) -> str:
    """The name of a URL's queue: its host, and where it has more than that, a mark of the rest. User, password and
    query count for nothing: they change, and the queue stays."""
    parts = _parts(url)
    host = re.sub(r"[^a-zA-Z0-9._-]", "-", parts.hostname or "")
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    rest = f"{port if port != DEFAULT_PORTS[parts.scheme] else ''}{parts.path.rstrip('/')}"
    name = "hook." + host.lower()
    if not rest and len(name) <= QUEUE_MAX:
        return name
    mark = hashlib.sha256(f"{host.lower()}:{port}{parts.path.rstrip('/')}".encode()).hexdigest()[:8]
    return f"{name[: QUEUE_MAX - 9]}-{mark}"


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # Read here, because it raises for what is no port.
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is not a URL that can be posted to. It begins with https:// (or http://) and a host")
    return parts
