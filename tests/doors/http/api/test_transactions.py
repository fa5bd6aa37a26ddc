"""Transactions over HTTP, of a real client of Kafka's protocol: listed, found to be open, and ended; and `whoami`."""

from __future__ import annotations

import pytest
from tests.doors.http.api.conftest import Served, serving
from tests.doors.http.api.test_clients import both  # noqa: F401

from headrace.client import Client, ClientError


async def test_an_open_transaction_is_found_and_aborted(both: Served):  # noqa: F811
    await both.broker.topics.create("t", 1)
    async with Client(both.server.addresses["kafka"]) as client:
        producer = client.transactional("mine")
        await producer.init()
        producer.begin()
        await (await producer.send("t", b"x"))
        status, answer = await both.ask("GET", "/v1/transactions?search=MI&state=Ongoing")
        assert (status, answer["total"]) == (200, 1)
        (found,) = answer["transactions"]
        assert (found["transactional_id"], found["state"], found["hanging"]) == ("mine", "Ongoing", False)
        assert found["partitions"] == [{"topic": "t", "partition": 0}]
        partition = both.broker.topics.existing("t").partitions[0]
        assert partition.last_stable < partition.high_watermark
        status, ended = await both.ask("POST", "/v1/transactions/mine/abort", {})
        assert (status, ended["state"], ended["partitions"]) == (200, "CompleteAbort", [])
        assert partition.last_stable == partition.high_watermark, "readers that wait for its end go on"
        with pytest.raises(ClientError):
            await producer.commit()
        await producer.close(flush=False)
        # Nothing is open any more: nothing to do.
        assert (await both.ask("POST", "/v1/transactions/mine/abort", {}))[0] == 200
    assert (await both.ask("POST", "/v1/transactions/none/abort", {}))[1]["error"] == "UnknownTransactionalId"


async def test_who_asks(served: Served, tmp_path):
    assert await served.ask("GET", "/v1/whoami") == (
        200, {"user": "", "has_users": False, "authorization": False}
    )  # fmt: skip
    async with serving(tmp_path / "other", authorization="on") as closed:
        assert (await closed.ask("GET", "/v1/whoami"))[1]["authorization"] is True
