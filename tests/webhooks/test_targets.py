"""Names that lead into a private network, at once or later, and redirects that do."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from tests.webhooks.receiver import receiving

from headrace.webhooks.endpoint import Endpoint, Verdict
from headrace.webhooks.targets import PublicResolver, is_public


class Names(AbstractResolver):
    """A DNS whose answers a test decides: each lookup has the next ones."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(
                hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=socket.AI_NUMERICHOST
            )
            for each in addresses
        ]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:7f00:1::80ff:fffe", "nonsense", ""),
    ],
)
def test_private_addresses(address: str):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str):
    assert is_public(address)


async def post(url: str, resolver: AbstractResolver | None) -> tuple[Verdict, str]:
    async with Endpoint(url, 5.0, 1, resolver=resolver) as endpoint:
        answer = await endpoint.post({"Content-Type": "text/plain"}, b"x")
    return answer.verdict, answer.reason


async def test_a_name_that_leads_to_a_private_address():
    async with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "hooks.example")
        verdict, reason = await post(url, PublicResolver(Names(["127.0.0.1"])))
        assert not receiver.got
        assert verdict is Verdict.DOWN
        assert "hooks.example leads to a private address (127.0.0.1)" in reason
        # As the operator allows it.
        assert (await post(url, Names(["127.0.0.1"])))[0] is Verdict.TAKEN


async def test_only_the_addresses_that_were_judged_are_connected_to():
    """One of two is private: it is left out. And each lookup is judged, not the first alone."""
    names = Names(["8.8.8.8", "127.0.0.1"], ["127.0.0.1"])
    resolver = PublicResolver(names)
    assert [each["host"] for each in await resolver.resolve("hooks.example", 80)] == ["8.8.8.8"]
    with pytest.raises(OSError, match="private address"):
        await resolver.resolve("hooks.example", 80)
    assert names.asked == 2


async def test_what_the_operator_wrote_is_taken():
    async with receiving() as receiver:
        assert (await post(receiver.url, PublicResolver()))[0] is Verdict.TAKEN
        assert (await post(receiver.url.replace("127.0.0.1", "localhost"), PublicResolver(Names(["127.0.0.1"]))))[
            0
        ] is (Verdict.TAKEN)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_into_a_private_network_is_not_followed(status: int):
    async with receiving() as inside, receiving() as receiver:
        receiver.behave = lambda got: web.Response(status=status, headers={"Location": inside.url})
        assert (await post(receiver.url, PublicResolver()))[0] is Verdict.DOWN
        assert not inside.got
