"""The console as a web application: login, and the one page that all pages are shown in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from nicegui import ui

from headrace.console.brokers import BrokerEntry
from headrace.console.client.api import Api
from headrace.console.client.transport import ApiError, BrokerAway, Credentials
from headrace.console.pages import PAGES
from headrace.console.sessions import COOKIE, Role, Session, Sessions
from headrace.console.settings import ConsoleSettings
from headrace.console.ui.formats import zone_named
from headrace.console.ui.frame import LOGO, STATIC, THEMES, Frame, Visit, head_html
from headrace.console.ui.markup import Html, h
from headrace.console.users_file import LocalUser, verify

FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="#0b66a3" stroke-width="2.4" '
    'stroke-linecap="round"><path d="M3 8c3 0 3 3 6 3s3-3 6-3 3 3 6 3"/>'
    '<path d="M3 15c3 0 3 3 6 3s3-3 6-3 3 3 6 3"/></svg>'
)
OPEN = Session(role=Role.ADMIN)
"""Where nobody logs in, on the loopback interface."""


@dataclass(frozen=True, slots=True)
class Web:
    """What requests are answered with."""

    settings: ConsoleSettings
    entries: Mapping[str, BrokerEntry]
    users: Mapping[str, LocalUser]
    sessions: Sessions

    def app(self) -> FastAPI:
        """The application; NiceGUI's own state is this process's."""
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.get("/login")(self.login_page)
        app.post("/login")(self.log_in)
        app.post("/logout")(self.log_out)
        app.get("/healthz")(self.health)
        ui.run_with(
            app,
            root=self.root,
            title="Headrace",
            favicon=FAVICON,
            dark=None,
            language="en-US",
            tailwind=False,
            show_welcome_message=False,
            binding_refresh_interval=None,
            reconnect_timeout=10.0,
            message_history_length=100,
        )
        return app

    @property
    def asks_for_login(self) -> bool:
        return bool(self.users) or any(each.has_logins for each in self.entries.values())

    def session_of(self, request: Request) -> Session | None:
        """Who asks; None: someone who has to log in."""
        if not self.asks_for_login:
            return OPEN
        return self.sessions.find(request.cookies.get(COOKIE))

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    def root(self, request: Request) -> Response | None:
        """Every page."""
        session = self.session_of(request)
        if session is None:
            return RedirectResponse(f"/login?to={request.url.path}", 303)
        parts = request.url.path.strip("/").split("/")
        entry = self.entries.get(parts[0])
        if entry is None:
            return RedirectResponse(f"/{next(iter(self.entries))}", 303)
        theme = request.cookies.get("headrace_theme", "auto")
        zone = zone_named(unquote(request.cookies.get("headrace_zone", "UTC")))
        ui.page_title(f"{entry.name} · Headrace")
        head_html()
        ui.dark_mode(THEMES.get(theme))
        visit = Visit(session, zone, theme, self.settings.read_only, is_open=not self.asks_for_login)
        Frame(self.entries, entry, visit, PAGES, lambda: self._holds(session)).build()
        return None

    def _holds(self, session: Session) -> bool:
        if session is OPEN:
            return not self.asks_for_login
        return self.sessions.is_alive(session)

    # --- login --------------------------------------------------------------------------------------------------------

    def login_page(self, request: Request) -> Response:
        if not self.asks_for_login:
            return RedirectResponse("/", 303)
        return HTMLResponse(self._login_html("", _way_back(request.query_params.get("to", ""))))

    async def log_in(self, request: Request) -> Response:
        given = parse_qs((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
        user, password = (given.get(name, [""])[0] for name in ("user", "password"))
        to = _way_back(given.get("to", [""])[0])
        address = request.client.host if request.client else ""
        if not self.sessions.may_try(address):
            return HTMLResponse(self._login_html("Too many attempts from here. Wait a minute.", to), 429)
        session, why = await self._check(user, password)
        if session is None:
            self.sessions.failed(address)
            return HTMLResponse(self._login_html(why, to), 403)
        response = RedirectResponse(to, 303)
        is_secure = request.url.scheme == "https"
        # Lax: a link in a notice leads to the page, and not to the login. What changes something asks for its Origin.
        response.set_cookie(COOKIE, session.id, httponly=True, samesite="lax", secure=is_secure)
        return response

    async def _check(self, user: str, password: str) -> tuple[Session | None, str]:
        if self.users:
            known = self.users.get(user)
            if await asyncio.to_thread(verify, known, password) and known is not None:
                return self.sessions.begin(user, known.role), ""
            return None, "The name or the password is wrong."
        credentials = Credentials(user, password) if user else Credentials(token=password)
        entry = next(each for each in self.entries.values() if each.has_logins)
        api = Api(entry.transport, credentials)
        try:
            who = await api.ask("GET", "/v1/whoami")
        except ApiError as error:
            if error.is_missing_route:
                who = {"user": user}
            else:
                return None, "The broker does not accept this name and password." if error.status == 401 else str(error)
        except BrokerAway as error:
            return None, str(error)
        return self.sessions.begin(str(who.get("user") or user or "token"), Role.ADMIN, credentials), ""

    async def log_out(self, request: Request) -> Response:
        self.sessions.end(request.cookies.get(COOKIE))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    def _login_html(self, wrong: str, to: str) -> str:
        hint = "Your user of the broker. With a token, leave the name empty." if not self.users else ""
        form = h(
            "form",
            h(
                "label",
                h("span", "Name"),
                h("input", name="user", class_="f", autocomplete="username", autofocus=True),
                class_="field",
            ),
            h(
                "label",
                h("span", "Password"),
                h("input", name="password", type="password", class_="f", autocomplete="current-password"),
                class_="field",
            ),
            h("input", type="hidden", name="to", value=to),
            h("div", wrong, class_="wrong", role="alert", style="color:var(--bad)") if wrong else None,
            h("button", "Log in", class_="b main-action"),
            method="post",
            action="/login",
        )
        card = h(
            "main",
            Html(f'<div class="brand" style="padding:0 0 12px">{LOGO}Headrace</div>'),
            h("h1", "Log in"),
            h("div", hint, class_="muted small"),
            form,
            class_="card",
        )
        css = (STATIC / "console.css").read_text()
        script = "if (matchMedia('(prefers-color-scheme: dark)').matches) document.body.classList.add('body--dark')"
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in · Headrace</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{css}</style></head>'
            f'<body><script>{script}</script><div class="login">{card}</div></body></html>'
        )


def _way_back(path: str) -> str:
    """Where a login leads: to a page of the console and nowhere else."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def local_users_path(settings: ConsoleSettings) -> Path:
    return Path(settings.users) if settings.users else Path(settings.data) / "users"
