"""Where a table lies: a folder of this machine, or a URL of an object store or of HDFS.

Data files are written and read by Arrow's file systems, Delta's log by delta-rs and Iceberg's metadata by pyiceberg.
All three take credentials from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`, Hadoop's own files) and, for what
differs from it, from options by the environment's names. Options are given to each of them in its own words here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from headrace.errors import HeadraceError
from headrace.targets import is_remote, local_path

# By scheme, Arrow's file system for it.
FILE_SYSTEMS = {
    "s3": "S3FileSystem",
    "s3a": "S3FileSystem",
    "gs": "GcsFileSystem",
    "abfs": "AzureFileSystem",
    "abfss": "AzureFileSystem",
    "hdfs": "HadoopFileSystem",
}
# An option's name in the environment, and what Arrow's and pyiceberg's file systems of S3 call it.
S3_NAMES = {
    "aws_endpoint_url": ("endpoint_override", "s3.endpoint"),
    "aws_access_key_id": ("access_key", "s3.access-key-id"),
    "aws_secret_access_key": ("secret_key", "s3.secret-access-key"),
    "aws_session_token": ("session_token", "s3.session-token"),
    "aws_region": ("region", "s3.region"),
}
AZURE_NAMES = {
    "azure_storage_account_name": ("account_name", "adls.account-name"),
    "azure_storage_account_key": ("account_key", "adls.account-key"),
    "azure_storage_sas_token": ("sas_token", "adls.sas-token"),
}
NAMES = {"s3": S3_NAMES, "s3a": S3_NAMES, "abfs": AZURE_NAMES, "abfss": AZURE_NAMES}


class TargetUnavailable(HeadraceError):
    """What a URL's scheme needs is not installed."""


@dataclass(frozen=True)
class Target:
    """A place for the files of one table. `of` makes one."""

    url: str
    """An absolute path of this machine, or a URL of another scheme than `file`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """How to reach it, beyond the environment; names in lower case."""

    @classmethod
    def of(cls, given: str | os.PathLike[str], option: str, options: Mapping[str, str] | None = None) -> Target:
        """What a user names; `option` is where it comes from, for the error. Raises TargetInvalid for no such place and
        TargetUnavailable where a package is missing."""
        text = os.fspath(given)
        if not is_remote(text):
            return cls(str(Path(local_path(text, option)).absolute()))
        scheme = text.partition(":")[0].lower()
        if not hasattr(fs, FILE_SYSTEMS[scheme]):
            raise TargetUnavailable(
                f"{option} cannot be {text!r}: this build of pyarrow ({pa.__version__}) has no {FILE_SYSTEMS[scheme]}. "
                "Install pyarrow from PyPI."
            )
        known = {name.lower(): value for name, value in (options or {}).items()}
        return cls(scheme + text[len(scheme) :].rstrip("/"), known)

    @property
    def scheme(self) -> str:
        """Empty for a folder of this machine."""
        return "" if self.url.startswith("/") else self.url.partition(":")[0]

    @property
    def local(self) -> Path | None:
        """The folder, on this machine."""
        return None if self.scheme else Path(self.url)

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.url.rpartition("/")[2]

    @property
    def location(self) -> str:
        """As a URL. Not quoted, as `Path.as_uri` would have it: Iceberg takes locations as they are."""
        return self.url if self.scheme else f"file://{self.url}"

    def open(self) -> tuple[fs.FileSystem, str]:
        """Arrow's file system, and the table's folder there. Raises TargetUnavailable."""
        if not self.scheme:
            return fs.LocalFileSystem(), self.url
        url = urlsplit(self.url)
        path = f"{url.netloc}{url.path}"
        try:
            if self.scheme in ("s3", "s3a"):
                return fs.S3FileSystem(**self._named(0, region=self._default("AWS_REGION", "us-east-1"))), path
            if self.scheme == "gs":
                return fs.GcsFileSystem(), path
            if self.scheme in ("abfs", "abfss"):
                container, _, account = url.netloc.partition("@")
                named = self._named(0, account_name=account.partition(".")[0] or os.environ.get(_ACCOUNT, ""))
                return fs.AzureFileSystem(**named), f"{container}{url.path}"
            return fs.HadoopFileSystem.from_uri(self.url), url.path
        except (OSError, ImportError, ValueError, pa.ArrowException) as error:
            raise TargetUnavailable(f"{self.url} cannot be opened: {error}") from None

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, by their paths relative to the table."""
        filesystem, root = self.open()
        for path in paths:
            filesystem.delete_file(f"{root}/{path}")

    @property
    def storage_options(self) -> dict[str, str]:
        """As delta-rs takes them: by the environment's names. A plain-text endpoint is permitted by being named."""
        found = dict(self.options)
        endpoint = found.get("aws_endpoint_url") or os.environ.get("AWS_ENDPOINT_URL", "")
        if self.scheme.startswith("s3") and endpoint.startswith("http://"):
            found.setdefault("aws_allow_http", "true")
        return found

    @property
    def catalog_properties(self) -> dict[str, str]:
        """As pyiceberg takes them for its file systems."""
        return self._named(1) if self.scheme in NAMES else {}

    def _named(self, column: int, **more: str) -> dict[str, Any]:
        """What is given by options, or else by the environment, in the words of one of the file systems."""
        names = NAMES[self.scheme]
        given = {name: self._default(name.upper(), "", name) for name in names}
        return {**more, **{names[name][column]: value for name, value in given.items() if value}}

    def _default(self, variable: str, otherwise: str, name: str = "") -> str:
        return self.options.get(name or variable.lower(), "") or os.environ.get(variable, otherwise)


_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
