"""Renew the table of settings in configuration.md from the code: `make docs`."""

from pathlib import Path

from headrace.config import settings_table

BEGIN = "<!-- settings: made by `make docs` -->\n"
END = "<!-- end of settings -->\n"

page = Path(__file__).parent / "configuration.md"
before, _, rest = page.read_text().partition(BEGIN)
_, _, after = rest.partition(END)
page.write_text(before + BEGIN + settings_table() + END + after)
