"""Every request code of RocketMQ's: the table in the documentation is what a broker and a name server do."""

from __future__ import annotations

from pathlib import Path

from docs.rocketmq_requests import answered, codes, requests_table, rpcs, rpcs_table
from tests.doors.rocketmq.client import Raw

from headrace.doors.rocketmq.codes import Code, Request

PAGE = Path(__file__).parents[3] / "docs" / "rocketmq.md"


def supported(raw: Raw) -> set[int]:
    return {code for code in codes() if raw.ask(code).code != Code.REQUEST_CODE_NOT_SUPPORTED}


def test_the_documentation_is_the_table() -> None:
    text = PAGE.read_text()
    assert requests_table() in text, "run `make docs` to renew the tables in docs/rocketmq.md"
    assert rpcs_table() in text, "run `make docs` to renew the tables in docs/rocketmq.md"


def test_what_is_answered_is_what_is_registered(raw: Raw, namesrv: Raw) -> None:
    of_broker, of_name_server = answered()
    assert supported(raw) == set(of_broker)
    assert supported(namesrv) == set(of_name_server)


def test_names_are_rocketmqs() -> None:
    known = codes()
    assert {each.value: each.name for each in Request} == {each.value: known.get(each.value) for each in Request}


def test_the_rpcs_are_those_of_the_protos() -> None:
    every, served = rpcs()
    assert set(served) < set(every)
