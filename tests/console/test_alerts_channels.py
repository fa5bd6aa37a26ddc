"""Notices to real peers: a mail server that speaks STARTTLS and AUTH, webhooks, and some that refuse or say nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from bench.peers import free_port
from tests.certificates import Authority
from tests.console.test_alerts_watch import listening

from headrace.console.alerts import channels
from headrace.console.alerts.channels import Deliveries, DeliveryFailed, Mail, slack_text
from headrace.console.alerts.notices import NOTICE_ALERTS_MAX, Notice
from headrace.console.alerts.state import Alert
from headrace.console.client.models import Channel, ChannelSecret

USER, PASSWORD = "headrace", "a long password"


def alert(queue: str = "mail") -> Alert:
    subject = (("topic", "orders"), ("queue", queue))
    return Alert("waits", "Mail waits", "critical", subject, 5.0, 2.0, "queue_depth", 1.0, 2.0)


def notice(*firing: Alert, resolved: tuple[Alert, ...] = ()) -> Notice:
    return Notice("ops", "waits", "Mail waits", "critical", firing, resolved)


class MailServer:
    """A mail server that takes a login over TLS alone, and says what it is told to say."""

    def __init__(self, certificate: str, key: str) -> None:
        self.taken: list[Message] = []
        self.recipients: list[list[str]] = []
        self.was_encrypted: list[bool] = []
        self.answer = "250 OK"
        self.refused: tuple[str, ...] = ()
        self.port = free_port()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        self._controller = Controller(
            *(self, "127.0.0.1", self.port),
            tls_context=tls,
            require_starttls=True,
            authenticator=self._login,
            auth_required=True,
        )
        self._controller.start()

    def stop(self) -> None:
        self._controller.stop()

    def _login(self, server: SMTP, session: Session, envelope: Envelope, how: str, given: Any) -> AuthResult:
        is_right = isinstance(given, LoginPassword) and given == LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=is_right, handled=False)

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, session: Session, envelope: Envelope, to: str, options: Any
    ) -> str:
        if to in self.refused:
            return "550 5.1.1 there is no such person here"
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            assert isinstance(envelope.content, bytes)
            self.taken.append(message_from_bytes(envelope.content))
            self.recipients.append(list(envelope.rcpt_tos))
            self.was_encrypted.append(session.ssl is not None)
        return self.answer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[MailServer]:
    made = MailServer(*authority.issue("127.0.0.1"))
    yield made
    made.stop()


def mail(server: MailServer, authority: Authority, **changes: Any) -> Deliveries:
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": server.port,
        "sender": "headrace@example.org",
        "user": USER,
        "password": PASSWORD,
        "ca": authority.path,
    }
    return Deliveries(Mail(**settings | changes), "https://console.example.org")


EMAIL = Channel(id="ops", kind="email", to=["ann@example.org", "bob@example.org"])


async def test_mail_goes_over_starttls_with_a_login(server: MailServer, authority: Authority) -> None:
    await mail(server, authority).send(EMAIL, ChannelSecret(), notice(alert()), "eu\nBcc: eve@example.org")
    (taken,) = server.taken
    assert server.was_encrypted == [True]
    assert server.recipients == [["ann@example.org", "bob@example.org"]], "a name of a broker adds no header"
    subject = " ".join(taken["Subject"].split())
    assert subject.startswith("[eu Bcc: eve@example.org] critical: Mail waits: topic orders, queue mail")
    assert taken["From"] == "headrace@example.org"
    text = taken.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert b"firing: topic orders, queue mail: queue_depth is 5 (threshold 2)" in text
    assert b"https://console.example.org" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"password": "wrong"}, "it refused the login: 535"),
        ({"user": ""}, "530"),
        ({"tls": "none"}, "See --smtp-user|STARTTLS|AUTH|530"),
        ({"tls": "tls"}, "SSL|wrong version"),
        ({"ca": ""}, "certificate verify failed"),
    ],
)
async def test_what_a_mail_server_refuses_a_client_for(
    server: MailServer, authority: Authority, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeliveryFailed, match=words) as failed:
        await mail(server, authority, **changes).send(EMAIL, ChannelSecret(), notice(alert()), "eu")
    assert str(failed.value).startswith("the mail server did not take the message: ")
    assert PASSWORD not in str(failed.value)
    assert not server.taken


@pytest.mark.parametrize("answer", ["451 4.3.0 try again later", "554 5.7.1 this looks like spam"])
async def test_what_a_mail_server_says_of_a_message_is_passed_on(
    server: MailServer, authority: Authority, answer: str
) -> None:
    server.answer = answer
    with pytest.raises(DeliveryFailed, match=answer[:3]) as failed:
        await mail(server, authority).send(EMAIL, ChannelSecret(), notice(alert()), "eu")
    assert answer in str(failed.value)


async def test_those_who_are_refused_do_not_keep_it_from_the_others(server: MailServer, authority: Authority) -> None:
    server.refused = ("bob@example.org",)
    await mail(server, authority).send(EMAIL, ChannelSecret(), notice(alert()), "eu")
    assert server.recipients == [["ann@example.org"]]
    server.refused = ("ann@example.org", "bob@example.org")
    with pytest.raises(DeliveryFailed, match=r"it refused all recipients: ann@example\.org: 550 5\.1\.1"):
        await mail(server, authority).send(EMAIL, ChannelSecret(), notice(alert()), "eu")


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SECONDS", 0.2)
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()[:2]
    began = time.monotonic()
    with pytest.raises(DeliveryFailed, match="timed out"):
        await Deliveries(Mail(host, port)).send(EMAIL, ChannelSecret(), notice(alert()), "eu")
    hook = Channel(id="ops", kind="webhook")
    deliveries = Deliveries(Mail())
    with pytest.raises(DeliveryFailed, match=r"cannot be reached: no answer within 0\.2 s"):
        await deliveries.send(hook, ChannelSecret(url=f"http://{host}:{port}/"), notice(alert()), "eu")
    assert time.monotonic() - began < 10
    await deliveries.close()
    silent.close()


async def test_nobody_listens(authority: Authority) -> None:
    with pytest.raises(DeliveryFailed, match="refused"):
        await Deliveries(Mail("127.0.0.1", 1)).send(EMAIL, ChannelSecret(), notice(alert()), "eu")
    with pytest.raises(DeliveryFailed, match="Start the console with --smtp HOST:PORT"):
        await Deliveries(Mail()).send(EMAIL, ChannelSecret(), notice(alert()), "eu")


async def test_a_webhook_can_verify_that_it_comes_from_the_console() -> None:
    """As a receiver would: over the bytes of the body, before it reads them."""
    async with listening() as (hook, url):
        deliveries = Deliveries(Mail(), "https://console.example.org")
        secret = ChannelSecret(url=url, secret="a secret of some length")
        await deliveries.send(Channel(id="ops", kind="webhook"), secret, notice(alert(), resolved=(alert("x"),)), "eu")
        await deliveries.close()
    (told,) = hook.told
    assert (told["broker"], told["rule"], told["state"]) == ("eu", "waits", "firing")
    assert [each["subject"] for each in told["firing"]] == [{"topic": "orders", "queue": "mail"}]
    assert [each["subject"] for each in told["resolved"]] == [{"topic": "orders", "queue": "x"}]


async def test_slack_gets_the_form_that_it_documents() -> None:
    """An incoming webhook takes an object with `text`, in which &, < and > are escaped, and *bold* and <URL|words> mean
    something. No server of Slack can be asked here."""
    bodies: list[Any] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-len"))
        bodies.append((head, json.loads(await reader.readexactly(length))))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    hook = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hook.sockets[0].getsockname()[1]}/services/T0/B0/x"
    deliveries = Deliveries(Mail(), "https://console.example.org")
    channel = Channel(id="ops", kind="slack")
    await deliveries.send(channel, ChannelSecret(url=url), notice(alert("<!channel> & co")), "eu")
    await deliveries.close()
    hook.close()
    ((head, body),) = bodies
    assert b"content-type: application/json" in head.lower()
    assert set(body) == {"text"}
    assert body["text"].splitlines()[0].startswith("*[eu] critical: Mail waits")
    assert "<!channel>" not in body["text"], "the name of a queue calls nobody"
    assert "&lt;!channel&gt; &amp; co" in body["text"]
    assert body["text"].endswith("<https://console.example.org|Open the console>")


def test_a_notice_has_so_many_alerts_and_counts_the_others() -> None:
    many = notice(*(alert(f"q{number}") for number in range(NOTICE_ALERTS_MAX + 7)))
    text = slack_text(many, "eu", "")
    assert text.count("• firing: topic") == NOTICE_ALERTS_MAX
    assert "and 7 more" in text
    assert len(channels.webhook_body(many, "eu", "")["firing"]) == NOTICE_ALERTS_MAX
