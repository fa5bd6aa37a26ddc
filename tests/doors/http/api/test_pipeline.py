from __future__ import annotations

from tests.doors.http.api.conftest import Served
from tests.waiting import until


async def test_tables_and_archives_are_listed_with_their_lag(served: Served):
    await served.topic("plain", 3)
    orders = await served.topic("orders", 3, lake="parquet+/srv/orders")
    await served.topic("logs", 1, **{"retention.archive.group": "archive-logs"})
    await served.broker.archived.look()
    await until(lambda: orders.id in served.broker.archived.tables)
    status, answer = await served.ask("GET", "/v1/pipeline")
    assert (status, answer["total"]) == (200, 2)
    logs, table = answer["targets"]
    assert (logs["topic"], logs["kind"], logs["group"], logs["lag"]) == ("logs", "archive", "archive-logs", None)
    assert (table["topic"], table["place"], table["group"]) == ("orders", "parquet+/srv/orders", "lake-orders")
    assert table["lag"] == 3
    assert table["stale_ms"] >= 0
    _, one = await served.ask("GET", "/v1/pipeline?search=ord*")
    assert [each["topic"] for each in one["targets"]] == ["orders"]
