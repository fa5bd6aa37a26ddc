"""Where gRPC clients are answered: the extra that it needs, TLS, and addresses in use."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.certificates import Authority
from tests.doors.rocketmq.grpc.client import RawGrpc, message

import headrace
from headrace.doors.rocketmq import settings as settings_module
from headrace.doors.rocketmq.grpc.protocol import Code, service
from headrace.doors.rocketmq.settings import GRPC_ADDRESS
from headrace.errors import DoorClosed


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        return None if name in settings_module.GRPC_PACKAGES else find_spec(name)

    monkeypatch.setattr(settings_module, "find_spec", find)


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_an_address_that_was_given_is_an_error() -> None:
    broker = headrace.Broker(rocketmq_grpc="127.0.0.1:0")
    with pytest.raises(DoorClosed, match=r"install headrace\[rocketmq-grpc\], or give --rocketmq-grpc off"), broker:
        pass


@pytest.mark.usefixtures("without_extra")
def test_without_the_extra_the_default_address_stays_closed() -> None:
    with headrace.Broker(rocketmq_grpc=GRPC_ADDRESS) as broker, pytest.raises(headrace.HeadraceError, match="off"):
        _ = broker.rocketmq_grpc


def test_the_protos_are_imported_without_the_client() -> None:
    # Its import writes to the user's home.
    script = "import sys, headrace.doors.rocketmq.grpc.listener\nprint([n for n in sys.modules if n[:8] == 'rocketmq'])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_address_in_use(broker: headrace.Broker) -> None:
    other = headrace.Broker(rocketmq_grpc=broker.rocketmq_grpc)
    with pytest.raises(DoorClosed, match=f"cannot listen on {broker.rocketmq_grpc}"), other:
        pass


def test_with_a_certificate_it_speaks_tls_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("localhost", "127.0.0.1")
    trusting = grpc.ssl_channel_credentials(Path(authority.path).read_bytes())
    with headrace.Broker(tls_cert=cert, tls_key=key, rocketmq_grpc="127.0.0.1:0", nsq="off") as broker:
        with RawGrpc(broker.rocketmq_grpc, credentials=trusting) as client:
            assert client.send("t", b"secret").status.code == Code.OK
        with RawGrpc(broker.rocketmq_grpc) as plain, pytest.raises(grpc.RpcError):
            plain.ask("SendMessage", messages=[message("t")])


def test_what_is_no_request_is_refused(broker: headrace.Broker, topic: str) -> None:
    with RawGrpc(broker.rocketmq_grpc) as client:
        for method in ("SendMessage", "QueryRoute", "Heartbeat", "EndTransaction"):
            answer = getattr(service, f"{method}Response").FromString(client.raw(method, b"\xff\xff\xff"))
            assert answer.status.code == Code.BAD_REQUEST
        for method in ("PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "None"):
            with pytest.raises(grpc.RpcError) as refused:
                client.raw(method, b"")
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as refused:
            client.raw("SendMessage", bytes(16_777_217))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for metadata in ((), (("x-mq-client-id", ""),)):
            answer = client.ask("SendMessage", metadata, messages=[message(topic)])
            assert answer.status.code == Code.CLIENT_ID_REQUIRED
        assert client.ask("SendMessage", (("x-mq-client-id", "x" * 256),)).status.code == Code.BAD_REQUEST
        assert client.send(topic, b"right").status.code == Code.OK


def test_more_requests_than_may_be_are_refused(topic: str) -> None:
    with headrace.Broker(rocketmq_grpc="127.0.0.1:0", rocketmq_grpc_calls_max=2) as broker:
        address = broker.rocketmq_grpc
        with RawGrpc(address, "1") as one, RawGrpc(address, "2") as two:
            one.be_producer(topic)
            stream = two.be_producer(topic)
            with pytest.raises(grpc.RpcError) as refused:
                one.send(topic, b"one too many")
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            stream.close()
            assert one.send(topic, b"one").status.code == Code.OK


METHODS = (
    *("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "AckMessage", "ForwardMessageToDeadLetterQueue"),
    *("EndTransaction", "NotifyClientTermination", "ChangeInvisibleDuration", "RecallMessage"),
)


@given(st.sampled_from(METHODS), st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_is_answered(broker: headrace.Broker, method: str, body: bytes) -> None:
    with RawGrpc(broker.rocketmq_grpc) as client:
        answer = getattr(service, f"{method}Response").FromString(client.raw(method, body))
        # None of the broker's own faults.
        assert answer.status.code not in (Code.OK, Code.INTERNAL_SERVER_ERROR) or method == "SendMessage"


@given(st.binary(min_size=1, max_size=200))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_over_a_stream_ends_it_or_is_passed_over(broker: headrace.Broker, body: bytes) -> None:
    with RawGrpc(broker.rocketmq_grpc) as client:
        call = client.raw_stream("Telemetry", body)
        with suppress(grpc.RpcError):
            list(call)
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
