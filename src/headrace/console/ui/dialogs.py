"""Dialogs: what will happen, in words, with the command line that does the same; and forms."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from nicegui import ui

from headrace.console.ui.markup import Child, Html, h, text
from headrace.console.ui.page import Page, command, explain
from headrace.errors import HeadraceError

Answer = Mapping[str, str]
Act = Callable[[Answer], Awaitable[None] | None]
Preview = Callable[[Answer], Awaitable[Child]]

SUBMIT = """(e) => {
  e.preventDefault();
  emit(e.submitter?.value ?? '', Object.fromEntries(new FormData(e.target)));
}"""
CHANGE = "(e) => emit(Object.fromEntries(new FormData(e.target.closest('form'))))"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    hint: Child = None
    kind: str = "text"
    """text, number, area, select, check or password."""
    choices: Sequence[tuple[str, str]] = ()
    placeholder: str = ""
    required: bool = False

    def markup(self) -> Html:
        place = f"field-{self.name}"
        about = f"{place}-hint" if self.hint else None
        common: dict[str, str | int | bool | None] = {
            "name": self.name,
            "id": place,
            "required": self.required,
            "autocomplete": "off",
            "aria_describedby": about,
        }
        hint = h("p", self.hint, class_="hint", id=about) if self.hint else None
        if self.kind == "check":
            box = h("input", type="checkbox", value="true", checked=self.value == "true", **common)
            return h("div", h("label", box, " ", self.label), hint, class_="field")
        if self.kind == "area":
            control = h("textarea", self.value, placeholder=self.placeholder or None, class_="f", **common)
        elif self.kind == "select":
            options = [h("option", words, value=value, selected=value == self.value) for value, words in self.choices]
            control = h("select", options, style="width:100%", class_="f", **common)
        else:
            shown = self.placeholder or None
            control = h("input", type=self.kind, value=self.value, placeholder=shown, class_="f", **common)
        return h("div", h("label", self.label, for_=place), control, hint, class_="field")


def ask(
    page: Page,
    title: str,
    what: Child,
    act: Act,
    fields: Sequence[Field] = (),
    done: str = "",
    verb: str = "Do it",
    equivalent: str | Callable[[Answer], str] = "",
    is_danger: bool = False,
    preview: Preview | None = None,
    is_wide: bool = False,
    again: Callable[[], Awaitable[None]] | None = None,
) -> ui.dialog:
    """Ask before something is done: `what` names it. `preview` shows what would change, as the form is filled in."""
    with ui.dialog() as dialog, ui.element("div").classes("sheet wide" if is_wide else "sheet") as sheet:
        sheet.props(f'role=dialog aria-modal=true aria-label="{title.replace(chr(34), "")}"')
        with ui.element("form").props("novalidate=false") as form:
            ui.html(h("div", h("h2", title), h("p", what), _grid(fields)), sanitize=False)
            shown = ui.html("", sanitize=False)
            said = ui.html("", sanitize=False)
            same = ui.html("", sanitize=False)
            kind = "b main-action danger" if is_danger else "b main-action"
            check = h("button", "Preview", type="submit", class_="b", value="preview") if preview else None
            ui.html(
                h(
                    "div",
                    h("button", "Cancel", type="button", class_="b", data_close=True),
                    check,
                    h("button", verb, type="submit", class_=kind, value="do"),
                    class_="end",
                ),
                sanitize=False,
            ).on("click", dialog.close, js_handler="(e) => { if (e.target.closest('[data-close]')) emit(); }")

    def draw_command(answer: Answer) -> None:
        words = equivalent if isinstance(equivalent, str) else equivalent(answer)
        same.content = command(words) if words else ""

    async def submit(way: str, answer: dict[str, str]) -> None:
        draw_command(answer)
        said.content = ""
        try:
            if way == "preview" and preview is not None:
                shown.content = text(await preview(answer))
                return
            result = act(answer)
            if inspect.isawaitable(result):
                await result
        except HeadraceError as error:
            said.content = h("div", explain(error), class_="note-box bad", role="alert")
            return
        page.record(title, command=equivalent if isinstance(equivalent, str) else equivalent(answer))
        dialog.close()
        if done:
            page.tell(done)
        await (again or page.reload)()

    form.on("submit", lambda event: submit(*event.args), js_handler=SUBMIT)
    if not isinstance(equivalent, str):
        form.on("change", lambda event: draw_command(event.args), js_handler=CHANGE)
    draw_command({each.name: each.value for each in fields})
    dialog.on("hide", dialog.delete)
    dialog.open()
    return dialog


def _grid(fields: Sequence[Field]) -> Html:
    plain = [each.markup() for each in fields if each.kind != "area"]
    areas = [h("div", each.markup(), style="margin-bottom:12px") for each in fields if each.kind == "area"]
    return h("div", h("div", plain, class_="fields") if plain else None, areas)


def sheet(page: Page, title: str, *body: Child, is_wide: bool = True, stays: bool = False) -> tuple[ui.dialog, ui.html]:
    """Something to look at, whose buttons are the page's; and a place below it. `stays`: also when the page is built
    anew behind it."""
    client = ui.context.client
    with (
        client.content if stays else nullcontext(),
        ui.dialog() as dialog,
        ui.element("div").classes("sheet wide" if is_wide else "sheet") as shown,
    ):
        shown.props(f'role=dialog aria-modal=true aria-label="{title.replace(chr(34), "")}"')
        ui.html(h("div", h("h2", title), *body), sanitize=False)
        below = ui.html("", sanitize=False)
    page.listen(shown)
    dialog.on("hide", dialog.delete)
    dialog.open()
    return dialog, below
