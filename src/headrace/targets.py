"""Where files lie: the one place where a path or a URL that a user gives is understood.

Folders and files are those of this machine, given as a path or as a `file:` URL; tables may lie elsewhere, by the
schemes of `REMOTE`. Every other URL is refused before anything is read or made: as a path, `s3://bucket/x` would be the
folder `s3:` of the current directory.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote_to_bytes, urlsplit

from headrace.errors import ConfigError

SUPPORTED = "a path, or file:///PATH"
# RFC 3986: what stands before a colon in the first segment is a scheme. So a folder of such a name is ./NAME.
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# Schemes of tables that lie elsewhere (`pipeline/target.py`).
REMOTE = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs")
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class TargetInvalid(ConfigError):
    """A path or a URL names nothing that can be read or written."""


def is_remote(target: str) -> bool:
    """Whether this is a URL of an object store or of HDFS."""
    scheme = SCHEME.match(target)
    return scheme is not None and scheme[1].lower() in REMOTE


def local_path(target: str | os.PathLike[str], option: str) -> str:
    """The path of a folder or a file on this machine. `option` is where it comes from, for the error. Raises
    TargetInvalid."""
    text = os.fspath(target)
    if not text:
        raise TargetInvalid(f"{option} is empty. Give {SUPPORTED}.")
    scheme = SCHEME.match(text)
    path = text if scheme is None else _from_url(text, scheme[1], option)
    if "\0" in path:
        raise TargetInvalid(f"{option} has a NUL in it ({text!r}), which no path can have. Give {SUPPORTED}.")
    return path


def _from_url(text: str, scheme: str, option: str) -> str:
    if scheme.lower() != "file":
        raise TargetInvalid(
            f"{option} cannot be {text!r}: URLs with {scheme}: are not supported. Give {SUPPORTED}, and write ./{text} "
            "if that is the name of a folder."
        )
    try:
        url = urlsplit(text)
    except ValueError as error:
        raise TargetInvalid(f"{option} cannot be {text!r}: {error}. Give {SUPPORTED}.") from None
    if url.netloc.lower() not in ("", "localhost"):
        raise TargetInvalid(
            f"{option} cannot be {text!r}: it names the host {url.netloc!r}, and files are those of this machine. Give "
            f"{SUPPORTED}; an absolute path begins with a third slash."
        )
    if url.query or url.fragment or text.endswith(("?", "#")):
        raise TargetInvalid(f"{option} cannot be {text!r}: write ? as %3F and # as %23 in a file URL.")
    if not url.path.startswith("/"):
        raise TargetInvalid(f"{option} cannot be {text!r}: the path of a file URL is absolute. Give {SUPPORTED}.")
    if (bad := BAD_ESCAPE.search(url.path)) is not None:
        raise TargetInvalid(
            f"{option} cannot be {text!r}: {url.path[bad.start() :][:3]!r} is not a percent-encoded byte. "
            "Write % as %25 in a file URL."
        )
    return os.fsdecode(unquote_to_bytes(url.path))
