"""Renew the tables that come from the code, in configuration.md, console.md, kafka.md, rest-api.md and
rocketmq.md: `make docs`."""

from pathlib import Path

from rocketmq_requests import requests_table, rpcs_table

from headrace.cli.console import settings_table as console_settings
from headrace.config import settings_table
from headrace.doors.http.api.openapi import table
from headrace.doors.http.api.routes import ENDPOINTS
from headrace.doors.kafka.registry import versions_table
from headrace.doors.kafka.rights import rights_table


def renew(page: str, name: str, table: str) -> None:
    """Put the table between the two remarks that name it."""
    path = Path(__file__).parent / page
    begin, end = f"<!-- {name}: made by `make docs` -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(before + begin + table + end + after)


renew("configuration.md", "settings", settings_table())
renew("console.md", "settings", console_settings())
renew("kafka.md", "versions", versions_table())
renew("kafka.md", "rights", rights_table())
renew("rest-api.md", "routes", table(ENDPOINTS))
renew("rocketmq.md", "requests", requests_table())
renew("rocketmq.md", "rpcs", rpcs_table())
