"""A page that one person has open: who, which broker, what of it is live, and what its buttons do.

A page is markup with names on it. A button has `data-do`, a form `data-form`; one listener at the root of the page
sends their names here, and `Page` calls what was given for the name. What is `live` is drawn again when the sampler has
read anew, and sent when it differs. So a page holds a handful of elements, whatever it shows.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any
from urllib.parse import urlencode

import structlog
from nicegui import ui

from headrace.console.brokers import BrokerEntry
from headrace.console.client.api import Api
from headrace.console.client.transport import ApiError, BrokerAway
from headrace.console.figures.history import Point
from headrace.console.figures.sampler import Sampler
from headrace.console.sessions import Role, Session
from headrace.console.ui import tables
from headrace.console.ui.markup import Child, Html, h, text
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.console")

LOOK_SECONDS = 1.0
# [what to do, its argument, what is picked]
CLICK = """(e) => {
  const on = e.target.closest('[data-do]');
  if (!on || on.disabled) return;
  e.preventDefault();
  const root = e.currentTarget;
  emit(on.dataset.do, on.dataset.arg ?? '', [...root.querySelectorAll('input[data-pick]:checked')].map((x) => x.value));
}"""
SUBMIT = """(e) => {
  e.preventDefault();
  const form = e.target.closest('form');
  emit(form.dataset.form, Object.fromEntries(new FormData(form)));
}"""

Handler = Callable[..., Awaitable[None] | None]


@dataclass(slots=True)
class Page:
    """A page, while it is shown."""

    entry: BrokerEntry
    session: Session
    sampler: Sampler
    zone: tzinfo
    path: str
    """Of the page, below the broker's: `/topics`."""
    query: Mapping[str, str]
    read_only: bool = False
    _handlers: dict[str, Handler] = field(default_factory=dict)
    _live: list[Callable[[], Awaitable[None] | None]] = field(default_factory=list)
    _seen: int = -1

    @property
    def api(self) -> Api:
        return self.entry.api(self.session)

    @property
    def broker(self) -> str:
        return self.entry.name

    def may(self, role: Role) -> bool:
        """Whether the page offers what asks for a role. The broker decides again."""
        return self.session.role >= role and (role <= Role.READER or not self.read_only)

    def link(self, path: str, **query: str | int | None) -> str:
        """The address of a page of this broker."""
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return f"/{self.broker}{path}" + (f"?{urlencode(kept)}" if kept else "")

    def go(self, path: str, **query: str | int | None) -> None:
        ui.navigate.to(self.link(path, **query))

    # --- what is shown ------------------------------------------------------------------------------------------------

    def show(self, *children: Child) -> ui.html:
        """Markup that stays until it is replaced (`content`)."""
        return ui.html(text(children), sanitize=False)

    def live(self, draw: Callable[[], Child]) -> None:
        """Markup that is drawn again with each sample."""
        element = self.show(draw())

        def again() -> None:
            made = text(draw())
            if element.content != made:
                element.content = made

        self._live.append(again)

    def live_async(self, draw: Callable[[], Awaitable[Child]]) -> Callable[[], Awaitable[None]]:
        """The same for what has to be read first; draw it at once with what is returned."""
        element = self.show("")

        async def again() -> None:
            made = text(await draw())
            if element.content != made:
                element.content = made

        self._live.append(again)
        return again

    def head(self, title: str, sub: Child = None, actions: Child = None, crumb: Child = None) -> None:
        self.show(
            h(
                "div",
                h("div", crumb, class_="crumb") if crumb else None,
                h("h1", title),
                h("span", class_="grow"),
                h("div", actions, class_="row-of") if actions else None,
                h("div", sub, class_="sub") if sub else None,
                class_="head",
            )
        )

    async def history(self, kind: str, name: str, figure: str, seconds: int) -> list[Point]:
        return await self.entry.history.read(self.broker, kind, name, figure, seconds)

    # --- what is done -------------------------------------------------------------------------------------------------

    def on(self, name: str, handler: Handler) -> None:
        """What the button or the form of this name does."""
        self._handlers[name] = handler

    def on_change(self, name: str, handler: Handler, role: Role = Role.OPERATOR) -> None:
        """The same for what changes something: refused where the person may not."""
        if self.may(role):
            self._handlers[name] = handler

    def button(
        self, words: str, name: str, arg: str = "", kind: str = "", role: Role = Role.OPERATOR, label: str = ""
    ) -> Html:
        """A button that does what `on_change` says, disabled where the person may not."""
        is_allowed = self.may(role)
        return h(
            "button",
            words,
            type="button",
            class_=f"b {kind}".strip(),
            data_do=name,
            data_arg=arg or None,
            disabled=not is_allowed,
            title=None if is_allowed else "You may look here, and change nothing.",
            aria_label=label or None,
        )

    async def did(self, name: str, *arguments: Any) -> None:
        """A button was pressed, or a form sent."""
        handler = self._handlers.get(name)
        if handler is None:
            return
        wanted = len(inspect.signature(handler).parameters)
        await self.attempt(lambda: handler(*arguments[:wanted]))

    async def attempt(self, call: Callable[[], Awaitable[None] | None]) -> bool:
        """Do something; what goes wrong is told in words."""
        try:
            done = call()
            if inspect.isawaitable(done):
                await done
        except HeadraceError as error:
            self.tell(explain(error), is_bad=True)
            return False
        return True

    def tell(self, words: str, is_bad: bool = False) -> None:
        """A word that goes away by itself."""
        ui.notify(
            words,
            color="negative" if is_bad else "dark",
            position="bottom",
            timeout=8000 if is_bad else 3500,
            close_button="Close" if is_bad else False,
        )

    def record(self, what: str, **about: object) -> None:
        """A change that was made, for the console's log; the broker's audit has it with before and after."""
        log.info("change", what=what, user=self.session.user, broker=self.broker, **about)

    def listen(self, root: ui.element) -> None:
        """Hear the buttons and forms below an element."""
        root.on("click", lambda event: self.did(*event.args), js_handler=CLICK)
        root.on("submit", lambda event: self.did(*event.args), js_handler=SUBMIT)

    async def look(self) -> None:
        """Draw again what is live, if there is anything new."""
        self.sampler.watch()
        if self._seen == self.sampler.number:
            return
        self._seen = self.sampler.number
        for again in list(self._live):
            drawn = again()
            if inspect.isawaitable(drawn):
                try:
                    await drawn
                except (ApiError, BrokerAway):
                    pass

    async def reload(self) -> None:
        """Build the page anew."""
        await ui.context.client.sub_pages_router.refresh()


def explain(error: HeadraceError) -> str:
    """An error as a sentence."""
    words = str(error) or type(error).__name__
    words = words[0].upper() + words[1:]
    return words if words.endswith((".", "?", "!")) else words + "."


def failure(error: HeadraceError) -> Html:
    """What stands where something could not be read."""
    if isinstance(error, BrokerAway):
        return tables.empty("The broker does not answer", "The page shows it again as soon as it is back.")
    if isinstance(error, ApiError) and error.is_missing_route:
        return tables.empty("This broker does not offer this", "Another version of it may: see its /openapi.json.")
    if isinstance(error, ApiError) and error.status in (401, 403):
        return tables.empty("You may not see this", explain(error))
    return h("div", explain(error), class_="note-box bad", role="alert")


def copy_button(words: str, what: str) -> Html:
    return h("button", words, type="button", class_="b quiet tiny", data_copy=what)


def command(words: str) -> Html:
    """The command line that does the same."""
    shown = h("span", "The same in a shell ", copy_button("Copy", words), h("code", words, class_="command"))
    return h("div", shown, class_="equivalent")


def js(value: object) -> str:
    """A value for a script of the page."""
    return json.dumps(value).replace("</", "<\\/")
