"""What a scenario of the demo did: figures for people, and checks against what was sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be exactly so."""

    what: str
    expected: Any
    found: Any

    @property
    def holds(self) -> bool:
        return bool(self.expected == self.found)


@dataclass(slots=True)
class Report:
    """What one scenario did."""

    title: str
    scenario: str
    figures: list[tuple[str, str]] = field(default_factory=list)
    """What happened, in the order in which it is shown."""
    checks: list[Check] = field(default_factory=list)
    look: list[str] = field(default_factory=list)
    """Where to look at it again."""
    seconds: float = 0.0

    def figure(self, name: str, value: object) -> None:
        self.figures.append((name, f"{value:,}" if isinstance(value, int) else str(value)))

    def check(self, what: str, expected: Any, found: Any) -> None:
        self.checks.append(Check(what, expected, found))

    @property
    def faults(self) -> list[Check]:
        return [each for each in self.checks if not each.holds]


def show(console: Console, reports: list[Report]) -> None:
    """The table at the end."""
    table = Table(title="What happened", show_lines=True)
    table.add_column("scenario")
    table.add_column("what", overflow="fold")
    table.add_column("checked against what was sent", overflow="fold")
    for report in reports:
        what = "\n".join(f"{name}: {value}" for name, value in report.figures)
        checked = "\n".join(
            f"[green]✓[/green] {each.what}" if each.holds else f"[red]✗ {each.what}: {_differs(each)}[/red]"
            for each in report.checks
        )
        title = f"[bold]{report.title}[/bold]\n[dim]{report.scenario}\n{report.seconds:.1f} s[/dim]"
        table.add_row(title, what, checked)
    console.print(table)


def _differs(check: Check) -> str:
    return f"expected {_brief(check.expected)}, found {_brief(check.found)}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_json(reports: list[Report]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "title": report.title,
            "scenario": report.scenario,
            "seconds": round(report.seconds, 3),
            "figures": dict(report.figures),
            "checks": [{"what": each.what, "holds": each.holds} for each in report.checks],
            "look": report.look,
        }
        for report in reports
    ]
