"""`headrace serve`: a broker in the foreground.

Its flags are the fields of `Config`, one for each. Standard output carries one line once every door accepts,
`ready kafka=HOST:PORT http=HOST:PORT nsq=...` with those that are open; the log goes to standard error. The first
SIGTERM, SIGINT or SIGHUP stops cleanly, the second at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.cli import INTERRUPTED
from headrace.config import Config, flag_name, meant, resolve, sections
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.cli.console_process import ConsoleProcess
    from headrace.doors.registry import DoorEntry
    from headrace.group_server import GroupServer
    from headrace.server import Server

# In the order of the ready line; others come behind.
LISTENERS = (
    *("kafka", "http", "nsq", "nsq-http", "nsq-https", "lookup", "lookup-http"),
    *("rocketmq", "rocketmq-namesrv", "rocketmq-grpc", "peer", "console"),
)


def parser(settings: type[Config] = Config) -> argparse.ArgumentParser:
    """The flags of `serve`, made from the configuration's fields."""
    made = argparse.ArgumentParser(
        prog="headrace serve",
        # argparse would list a hundred flags before it says what is wrong with one.
        usage="%(prog)s [--config FILE] [--data DIR] [--kafka HOST:PORT] [--http HOST:PORT] [--SETTING VALUE]...",
        description="Starts a broker and serves until SIGTERM, SIGINT or SIGHUP.",
        epilog="A flag wins over its environment variable (HEADRACE_ and the name in capitals, as in HEADRACE_DATA), "
        "that over the file, that over the default.",
        allow_abbrev=False,
    )
    made.add_argument("--config", metavar="FILE", help="a TOML file with the same settings, named as here with _ for -")
    for title, part in sections(settings).items():
        group = made.add_argument_group(title)
        for known in part:
            _add_flag(group, known)
    return made


def _add_flag(group: argparse._ArgumentGroup, known: Field[Any]) -> None:
    assert known.default is not MISSING
    default = str(known.default).lower() if isinstance(known.default, bool) else known.default
    # Such a flag alone means true.
    switch: dict[str, Any] = {"nargs": "?", "const": "true"} if known.type == "bool" else {}
    suffix = f" (default: {default})" if default != "" else ""
    group.add_argument(
        flag_name(known.name),
        # Nothing is converted here: `resolve` does it for all sources alike.
        default=argparse.SUPPRESS,
        **switch,
        metavar=_metavar(str(known.type), known.metadata),
        help=(known.metadata["help"] + suffix).replace("%", "%%"),
    )


def _metavar(kind: str, limits: Mapping[str, Any]) -> str:
    return "|".join(limits["choices"]) or limits["metavar"] or {"bool": "true|false", "int": "N"}.get(kind, "TEXT")


def read_file(path: str) -> dict[str, Any]:
    """The settings of a TOML file."""
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None


def serve(arguments: Sequence[str], settings: type[Config] = Config, doors: Sequence[DoorEntry] | None = None) -> int:
    """Run until a signal; the process's exit code. A program that brings doors of its own gives their `settings` and
    all `doors` that there are."""
    reading = parser(settings)
    found, unknown = reading.parse_known_args(arguments)
    if unknown:
        slip = unknown[0].partition("=")[0]
        names = [flag_name(each.name) for each in fields(settings)]
        reading.error(f"there is no {slip}{meant(slip, names)}; --help lists all settings")
    flags = vars(found)
    try:
        path = flags.pop("config", None) or os.environ.get("HEADRACE_CONFIG")
        config = resolve(flags, os.environ, read_file(path) if path else {}, path or "", settings)
        _run(config, doors)
    except HeadraceError as error:
        print(f"headrace serve: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _run(config: Config, doors: Sequence[DoorEntry] | None) -> None:
    # Here, after the flags were found good: a slip in them is answered without loading the broker. What is imported
    # stays, and to look for garbage in it again and again would take a thirtieth of the time to start.
    gc.disable()
    _import_lightly()
    from headrace.embedded import new_loop
    from headrace.logs import log_like_a_server

    gc.freeze()
    gc.enable()
    log_like_a_server(config.log_level, config.log_format)
    _raise_open_files()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(config, doors))


def _raise_open_files() -> None:
    """Raise the limit of open files as far as is allowed: a shell's default is below what a broker holds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _import_lightly() -> None:
    """Import structlog and crc32c without what they load beside themselves: an eighth of the time to start, and 7 MB.
    structlog takes rich where it can, to colour tracebacks, and greenlet, for threads that no broker has. crc32c reads
    its own version from the metadata of its package, and the standard library parses those as an email."""
    metadata = ModuleType("importlib.metadata")
    metadata.version = lambda package: ""  # type: ignore[attr-defined]
    # None is what makes an import fail.
    absent = {"rich": None, "greenlet": None, "importlib.metadata": metadata}
    found = {name: sys.modules[name] for name in absent if name in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        for name in ("crc32c", "structlog"):
            import_module(name)
    finally:
        for name in absent:
            del sys.modules[name]
        sys.modules.update(found)


async def _serve(config: Config, doors: Sequence[DoorEntry] | None) -> None:
    from headrace.runtime.memory import return_large_buffers

    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # `nohup` has SIGHUP ignored, and means it.
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    server = _server(config, doors)
    await server.start()
    reloading: set[asyncio.Task[None]] = set()
    if config.tls_cert:
        # Certificates are renewed by those who send it.
        loop.add_signal_handler(signal.SIGHUP, lambda: reloading.add(loop.create_task(server.reload_certificates())))
    # What is there by now stays. Each full collection would look at all of it, and hold the loop for some 20 ms.
    gc.freeze()
    return_large_buffers()
    console: ConsoleProcess | None = None
    try:
        addresses = dict(server.addresses)
        if config.console != "off":
            from headrace.cli.console_process import ConsoleProcess

            console = ConsoleProcess(config, addresses)
            addresses["console"] = await console.start()
        # Listeners of other doors keep the order in which they were opened.
        names = [name for name in dict.fromkeys((*LISTENERS, *addresses)) if name in addresses]
        try:
            print("ready", *(f"{name}={addresses[name]}" for name in names), flush=True)
        except OSError as error:
            raise HeadraceError(f"the line `ready` cannot be written to standard output: {error.strerror}") from None
        await _wait(stopping, server)
    finally:
        if console is not None:
            await console.stop()
        await server.stop()


def _server(config: Config, doors: Sequence[DoorEntry] | None) -> Server | GroupServer:
    from headrace.doors.registry import DOORS

    entries = DOORS if doors is None else doors
    if config.cluster:
        from headrace.group_server import GroupServer

        return GroupServer(config, doors=entries)
    from headrace.server import Server

    return Server(config, doors=entries)


async def _wait(stopping: asyncio.Event, server: Server | GroupServer) -> None:
    """Return when the broker is to stop. Where it cannot go on, the process ends."""
    stops, fails = asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(server.wait_failed())
    try:
        await asyncio.wait((stops, fails), return_when=asyncio.FIRST_COMPLETED)
        if fails.done():
            # At once, as if it were killed: what is broken may let nothing come to an end, and the other nodes take
            # over as soon as this one is gone.
            print(f"headrace serve: {fails.exception()}", file=sys.stderr, flush=True)
            os._exit(1)
    finally:
        stops.cancel()
        fails.cancel()
