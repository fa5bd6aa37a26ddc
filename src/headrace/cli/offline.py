"""Commands that manage users and rights: over the HTTP door, or with --data on the directory of a stopped broker.

The second is how the first administrator comes to be. The same requests are answered by the same handlers, of a broker
without doors that this process runs for a moment: the lock of the directory keeps any other broker out meanwhile.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import unquote, urlencode

import typer

from headrace.cli.credentials import authorization, login_options
from headrace.cli.options import FORMAT_OPTIONS, Format, Options, add_options
from headrace.cli.over_http import OPTIONS, Api
from headrace.errors import HeadraceError
from headrace.targets import local_path

# Of a node in a group.
GROUP_FILE = "cluster-identity"

Data = Annotated[
    str,
    typer.Option(
        "--data", metavar="DIR", help="Work on the data directory of a stopped broker, or of one to come, without one."
    ),
]
DATA: Options = {"data": (Data, "")}


class OfflineApi(Api):
    """Answers by itself, on a data directory."""

    def __init__(self, data: str, as_json: bool) -> None:
        self.as_json = as_json
        self._data = local_path(data, "--data")
        if os.path.exists(os.path.join(self._data, GROUP_FILE)):
            raise HeadraceError(
                f"{self._data} is of a node in a group, whose users and rights the leader changes. Use --http."
            )

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, query: Mapping[str, object] | None = None
    ) -> Any:
        return asyncio.run(self._ask_broker(method, path, body, query))

    async def _ask_broker(
        self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, object] | None
    ) -> Any:
        from headrace.broker.security import Session
        from headrace.config import Config
        from headrace.doors.http.api.routes import RestApi
        from headrace.doors.http.server.messages import Request
        from headrace.logs import log_like_a_library
        from headrace.server import Server

        log_like_a_library()
        logging.getLogger("headrace").setLevel(logging.ERROR)
        wanted = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        server = Server(Config(data=self._data, audit="on"), doors=())
        await server.start()
        try:
            request = Request(
                method,
                unquote(path),
                urlencode(wanted),
                b"" if body is None else json.dumps(body).encode(),
                session=Session(user=_own_name(), door="offline"),
            )
            response = await RestApi(server.broker).answer(request)
        finally:
            await server.stop()
        answer = json.loads(response.body)
        if response.status >= 400:
            raise HeadraceError(str(answer["message"]))
        return answer


def _own_name() -> str:
    """Who is at work, for the audit."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def manages(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `over_http`, and --data. Its first parameter is the `Api`."""

    def run(
        http: str,
        tls_ca: str,
        as_user: str,
        as_password_file: str,
        token_file: str,
        data: str,
        output: Format,
        output_json: bool,
        **arguments: Any,
    ) -> None:
        as_json = output_json or output is Format.JSON
        if data:
            command(OfflineApi(data, as_json), **arguments)
        else:
            login = authorization(as_user, as_password_file, token_file)
            command(Api(http, as_json, login, tls_ca), **arguments)

    options = {**OPTIONS, **login_options(command), **DATA, **FORMAT_OPTIONS}
    return add_options(command, run, options, ["api"])
