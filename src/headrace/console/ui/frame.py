"""The frame around every page: navigation, the broker, search, theme, and the banner of a broker that is away."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from urllib.parse import quote

from nicegui import PageArguments, ui
from nicegui.events import GenericEventArguments

from headrace.console.brokers import BrokerEntry
from headrace.console.client.transport import BrokerAway
from headrace.console.sessions import Session
from headrace.console.ui.formats import clock, offset
from headrace.console.ui.markup import Child, Html, h, text
from headrace.console.ui.page import Page, failure, js
from headrace.errors import HeadraceError

STATIC = Path(__file__).parent.parent / "static"
Build = Callable[[Page], Awaitable[None] | None]


FIND = """(e) => {
  if (e.target.getAttribute('role') !== 'search') return;
  e.preventDefault();
  emit(new FormData(e.target).get('find'));
}"""


@dataclass(frozen=True, slots=True)
class Place:
    """A page in the navigation."""

    path: str
    title: str
    key: str
    """Behind g, the key that leads there."""


SECTIONS: Mapping[str, tuple[Place, ...]] = {
    "": (Place("/", "Overview", "o"), Place("/alerts", "Alerts", "l")),
    "Data": (
        Place("/topics", "Topics", "t"),
        Place("/messages", "Messages", "m"),
        Place("/dead-letters", "Dead letters", "d"),
        Place("/timers", "Timers", "i"),
        Place("/transactions", "Transactions", "x"),
    ),
    "Consumers": (
        Place("/queues", "Queues", "q"),
        Place("/groups", "Groups", "g"),
        Place("/apps", "Apps", "a"),
        Place("/clients", "Clients", "c"),
    ),
    "Operations": (
        Place("/pipeline", "Pipeline", "p"),
        Place("/access", "Users and rights", "u"),
        Place("/cluster", "Cluster", "n"),
    ),
}
LOGO = Html(
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" '
    'aria-hidden="true"><path d="M3 7c3 0 3 3 6 3s3-3 6-3 3 3 6 3"/><path d="M3 14c3 0 3 3 6 3s3-3 6-3 3 3 6 3"/></svg>'
)
THEMES = {"auto": None, "dark": True, "light": False}


@dataclass(frozen=True, slots=True)
class Visit:
    """A browser that came: who, and what it prefers."""

    session: Session
    zone: tzinfo
    theme: str
    read_only: bool
    is_open: bool
    """Nobody logs in here."""


def head_html() -> None:
    """Style and behaviour, once for each page load."""
    ui.add_head_html(f"<style>{(STATIC / 'console.css').read_text()}</style>")
    ui.add_body_html(f"<script>{(STATIC / 'console.js').read_text()}</script>")


class Frame:
    """The frame of one browser's page."""

    def __init__(
        self,
        entries: Mapping[str, BrokerEntry],
        entry: BrokerEntry,
        visit: Visit,
        pages: Mapping[str, Build],
        is_alive: Callable[[], bool],
    ) -> None:
        self._entries = entries
        self._entry = entry
        self._visit = visit
        self._pages = pages
        self._is_alive = is_alive
        self._sampler = entry.sampler_of(visit.session)
        self._page: Page | None = None
        self._path = "/"
        self._is_broken = False
        """The page could not be shown, because the broker is away: it is built anew when that is back."""

    def build(self) -> None:
        """Build it into the page that is under way."""
        name = self._entry.name
        ui.html(h("a", "Skip to the page", href="#content", class_="skip"), sanitize=False)
        with ui.element("div").classes("frame"):
            self._side = (
                ui.html(self._navigation(), sanitize=False, tag="nav").classes("side").props('aria-label="Pages"')
            )
            with ui.element("div").classes("main"):
                bar = ui.html(self._bar(), sanitize=False, tag="header").classes("bar")
                bar.on(
                    "submit",
                    self._find,
                    js_handler=FIND,
                )
                bar.on(
                    "change",
                    self._choose,
                    js_handler="(e) => { if (e.target.name === 'broker') emit(e.target.value); }",
                )
                self._bar_html = bar
                self._banner = ui.html("", sanitize=False).classes("banner").props('role="status" aria-live="polite"')
                with ui.element("div").classes("content").props("id=content"):
                    routes = {
                        f"/{name}" + ("" if path == "/" else path): self._routed(path, build)
                        for path, build in self._pages.items()
                    }
                    ui.sub_pages(routes, show_404=False)
        ui.on("console_help", self._help)
        ui.timer(1.0, self._look)

    def _routed(self, path: str, build: Build) -> Callable[..., Awaitable[None]]:
        async def shown(arguments: PageArguments) -> None:
            page = Page(
                self._entry,
                self._visit.session,
                self._sampler,
                self._visit.zone,
                path,
                dict(arguments.query_parameters),
                self._visit.read_only,
            )
            self._path, self._page, self._is_broken = path, page, False
            self._sampler.watch()
            self._side.content = self._navigation()
            root = ui.element("div")
            page.listen(root)
            with root:
                try:
                    made = build(page)
                    if inspect.isawaitable(made):
                        await made
                except HeadraceError as error:
                    page.show(failure(error))
                    self._is_broken = isinstance(error, BrokerAway)

        # Annotations are strings in this module, and NiceGUI looks for the class.
        parameter = inspect.Parameter("arguments", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=PageArguments)
        shown.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
        return shown

    def _navigation(self) -> Html:
        base = f"/{self._entry.name}"
        firing = len(self._entry.alerts.firing) if self._entry.shows_all(self._visit.session) else 0
        items: list[Child] = [h("a", LOGO, "Headrace", class_="brand", href=base)]
        for section, places in SECTIONS.items():
            if section:
                items.append(h("h2", section))
            for place in places:
                is_here = self._path == place.path or (place.path != "/" and self._path.startswith(place.path[:-1]))
                count = h("span", firing, class_="mark bad plain") if place.path == "/alerts" and firing else None
                href = base + ("" if place.path == "/" else place.path)
                items.append(
                    h("a", place.title, count, class_="item", href=href, aria_current="page" if is_here else None)
                )
        return h("div", items)

    def _bar(self) -> Html:
        session = self._visit.session
        now = datetime.now(self._visit.zone)
        zone = getattr(self._visit.zone, "key", "") or "UTC"
        chosen: Child
        if len(self._entries) > 1:
            options = [h("option", each, value=each, selected=each == self._entry.name) for each in self._entries]
            chosen = h("select", options, name="broker", class_="f", aria_label="Broker")
        else:
            chosen = h("span", self._entry.name, class_="muted nowrap wide")
        menu = h("button", "Menu", type="button", class_="b quiet menu-button", aria_label="Menu")
        find = h(
            "form",
            h(
                "input",
                name="find",
                class_="f",
                placeholder="Find a topic, queue, group or message   /",
                data_find=True,
                aria_label="Find",
                autocomplete="off",
            ),
            class_="find",
            role="search",
        )
        theme = h(
            "button",
            "Theme",
            type="button",
            class_="b quiet wide",
            id="theme",
            title="Dark, light, or as the system has it",
        )
        help_ = h("button", "?", type="button", class_="b quiet wide", id="help", aria_label="Keyboard shortcuts")
        offset_ = h(
            "span",
            f"{zone} {offset(now)}" if zone != "UTC" else "UTC",
            class_="muted small nowrap wide",
            title="Times are shown in this zone",
        )
        who: Child = None
        if not self._visit.is_open:
            leave = h("form", h("button", "Log out", class_="b quiet"), method="post", action="/logout")
            who = h(
                "span", h("span", session.user, class_="small nowrap"), leave, class_="row-of", style="flex-wrap:nowrap"
            )
        only = h("span", "read only", class_="mark warn") if self._visit.read_only else None
        return text([menu, chosen, find, h("span", class_="grow"), only, offset_, theme, help_, who])

    async def _look(self) -> None:
        if not self._is_alive():
            ui.run_javascript("location.href = '/login'")
            return
        away = self._sampler.away
        words = ""
        if away is not None:
            since = clock(away.since * 1000, self._visit.zone)
            words = f"The broker does not answer since {since}. What you see is from before. {away.reason}"
        elif self._sampler.refused:
            words = f"No figures: {self._sampler.refused}"
        shown = h("span", words) if words else ""
        if self._banner.content != shown:
            self._banner.content = shown
        made = self._navigation()
        if self._side.content != made:
            self._side.content = made
        if self._is_broken and away is None:
            self._is_broken = False
            await ui.context.client.sub_pages_router.refresh()
        elif self._page is not None:
            await self._page.look()

    async def _find(self, event: GenericEventArguments) -> None:
        words = str(event.args or "").strip()
        if words:
            ui.navigate.to(f"/{self._entry.name}/find?q={quote(words, safe='')}")

    def _choose(self, event: GenericEventArguments) -> None:
        if event.args in self._entries:
            # Another broker is another page load: this one has its pages and its sampler.
            ui.run_javascript(f"location.href = {js('/' + event.args)}")

    def _help(self) -> None:
        rows = [
            (h("kbd", "/"), "Filter the list, or find"),
            (h("kbd", "?"), "This help"),
            (h("kbd", "Esc"), "Leave a field, close a dialog"),
        ]
        for places in SECTIONS.values():
            rows += [(Html(f"<kbd>g</kbd> <kbd>{each.key}</kbd>"), each.title) for each in places]
        with ui.dialog() as dialog, ui.element("div").classes("sheet"):
            body = h("dl", [(h("dt", key), h("dd", words)) for key, words in rows], class_="facts")
            ui.html(h("div", h("h2", "Keyboard"), body), sanitize=False)
        dialog.on("hide", dialog.delete)
        dialog.open()
