"""What a server takes of the machine: a runtime over its data directory, its certificate, and descriptors to share.

It is the same for a server that runs alone and for one in a group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

import structlog

from headrace import format as kernels
from headrace.certificates import Certificates
from headrace.config import Config
from headrace.doors.capacity import Capacity
from headrace.errors import ConfigError, DataDirectoryInvalid
from headrace.runtime import Runtime
from headrace.runtime.disk import FOLDER_MODE, OTHERS
from headrace.runtime.real import real_runtime

log = structlog.get_logger("headrace.server")

# Descriptors beside those of connections and segments, and of what is open before a start: journals, checkpoints and
# work off the loop, listening sockets, the event loop, pipes to workers, questions to other servers.
OWN_FILES = 64


class Resources:
    """Made when a server starts, closed when all that stands on it has stopped."""

    def __init__(self, config: Config, runtime: Runtime | None, capacity: Capacity) -> None:
        """Raises ConfigError."""
        # Before anything is touched, because this is the cheapest thing to get wrong.
        self.certificates = Certificates(config)
        is_real = runtime is None
        try:
            if is_real:
                _keep_others_out(config.data)
            self.runtime = runtime or real_runtime(config.data)
        except FileExistsError:
            raise ConfigError(f"the data directory {config.data} is not a directory") from None
        except OSError as error:
            raise ConfigError(f"the data directory {config.data} cannot be made: {error.strerror}") from None
        if not kernels.compiled():
            log.warning("the kernels are interpreted, not compiled: install with a C compiler for full speed")
        limit = self.runtime.disk.open_files_max()
        before = len(os.listdir("/proc/self/fd")) if is_real else 0
        self.segments_max = _share_descriptors(config, limit, limit - before - OWN_FILES, capacity)
        """How many segments may be open."""
        self.certificates.watch(self.runtime.offload)

    async def reload_certificates(self) -> None:
        """Read the certificates of the doors again."""
        await self.certificates.reload(self.runtime.offload)

    def close(self) -> None:
        self.certificates.stop()
        self.runtime.offload.close()


def _share_descriptors(config: Config, limit: int, left: int, capacity: Capacity) -> int:
    """Share the descriptors that the process may open: first what the broker needs for itself, then segments, and
    the rest is for the connections of all doors together. How many segments may be open."""
    # Where both do not fit, segments get a third: they can be opened again, a connection cannot.
    segments = config.open_files_max
    if left - segments < config.connections_max:
        segments = max(min(segments, left // 3), 1)
    connections = max(left - segments, 1)
    capacity.descriptors_left = connections
    capacity.files_max = max(segments // 2, 1)
    if connections < config.connections_max:
        log.warning(
            f"all doors together take {connections} connections, and not {config.connections_max} each: the limit "
            f"of open files is {limit} (ulimit -n), and {segments} are for segments"
        )
    return segments


def directory_error(data: str, error: OSError) -> DataDirectoryInvalid:
    """What to report where the log cannot use its directory."""
    if error.errno == errno.ENOSPC:
        return DataDirectoryInvalid(
            f"the disk of the data directory {data} is full: free a little room, and start again"
        )
    where = f" ({error.filename})" if error.filename else ""
    return DataDirectoryInvalid(
        f"the data directory {data} cannot be used: {error.strerror or error}{where}; "
        "the broker must be able to read and write all of it"
    )


def _keep_others_out(data: str) -> None:
    """Close a directory that is there and empty to other users; of one that is in use, only warn: it may be more than
    the broker's, and closing it is for its owner to decide."""
    if not os.path.isdir(data) or not (mode := os.stat(data).st_mode) & OTHERS:
        return
    # It may be another user's, who has let the broker in.
    with contextlib.suppress(PermissionError):
        if not os.listdir(data):
            os.chmod(data, FOLDER_MODE)
            return
    log.warning(
        f"other users can read the data directory {data} (mode {stat.S_IMODE(mode):04o}). Close it to them: "
        f"chmod -R go-rwx {data}"
    )
