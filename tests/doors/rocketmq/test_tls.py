"""With a certificate both name server and broker speak TLS alone, also for answers that are large."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.doors.rocketmq.client import Raw

import headrace
from headrace.doors.rocketmq.codes import Code, Request


def test_both_speak_tls_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    settings: dict[str, Any] = {"rocketmq": "127.0.0.1:0", "rocketmq_namesrv": "127.0.0.1:0", "nsq": "off"}
    trusting = ssl.create_default_context(cafile=authority.path)
    with headrace.Broker(tls_cert=cert, tls_key=key, **settings) as broker:
        for address in (broker.rocketmq, broker.rocketmq_namesrv):
            with Raw(address) as plain, pytest.raises(ConnectionError):
                plain.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"})
        with Raw(broker.rocketmq, tls=trusting) as raw, Raw(broker.rocketmq_namesrv, tls=trusting) as namesrv:
            bodies = [bytes([number]) * 400_000 for number in range(5)]
            for body in bodies:
                assert raw.sent("t", body).code == Code.SUCCESS
            # All at once: each waits until the client has read the last.
            pulls = [raw.pull("t", offset) for offset in range(5)]
            assert [raw.answer(each).code for each in pulls] == [Code.SUCCESS] * 5
            assert [each.body for each in raw.read("t")] == bodies
            assert namesrv.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "t"}).code == Code.SUCCESS
