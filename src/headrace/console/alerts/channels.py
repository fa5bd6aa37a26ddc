"""Delivery of notices: a webhook, a Slack-compatible webhook, e-mail."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

import msgspec
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout

from headrace.console.alerts.notices import NOTICE_ALERTS_MAX, Notice, lines
from headrace.console.alerts.state import Alert
from headrace.console.client.models import Channel, ChannelSecret
from headrace.errors import HeadraceError

log = structlog.get_logger("headrace.console")

SECONDS = 15.0
SIGNATURE = "Headrace-Signature"


class DeliveryFailed(HeadraceError):
    """A channel did not take a notice."""


@dataclass(frozen=True, slots=True)
class Mail:
    """How e-mail is sent."""

    host: str = ""
    port: int = 25
    sender: str = "headrace@localhost"
    user: str = ""
    password: str = ""
    tls: str = "starttls"
    """`starttls`, `tls` or `none`."""
    ca: str = ""
    """Certificates in PEM that the server is verified by; empty: the system's."""


def webhook_body(notice: Notice, broker: str, url: str) -> dict[str, Any]:
    """What a webhook gets."""
    return {
        "broker": broker,
        "rule": notice.rule,
        "name": notice.name,
        "severity": notice.severity,
        "state": "firing" if notice.firing else "resolved",
        "summary": notice.subject,
        "firing": [_alert(each) for each in notice.firing[:NOTICE_ALERTS_MAX]],
        "resolved": [_alert(each) for each in notice.resolved[:NOTICE_ALERTS_MAX]],
        "console": url,
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "subject": dict(alert.subject),
        "figure": alert.figure,
        "value": alert.value,
        "threshold": alert.threshold,
        "since_ms": round(alert.since * 1000),
        "fired_ms": round(alert.fired * 1000),
        "resolved_ms": round(alert.resolved * 1000) or None,
        "runbook": alert.runbook or None,
    }


def slack_text(notice: Notice, broker: str, url: str) -> str:
    """What a Slack-compatible webhook gets."""
    words = "\n".join(f"• {_escape(line)}" for line in lines(notice))
    link = f"\n<{url}|Open the console>" if url else ""
    return f"*{_escape(f'[{broker}] {notice.subject}')}*\n{words}{link}"


def _escape(text: str) -> str:
    """Without what Slack would read as a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Deliveries:
    """Sends notices through channels."""

    def __init__(self, mail: Mail, url: str = "") -> None:
        self._mail = mail
        self._url = url
        self._session: ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, channel: Channel, secret: ChannelSecret, notice: Notice, broker: str) -> None:
        """Raises DeliveryFailed."""
        if channel.kind == "email":
            await self._send_mail(channel, notice, broker)
        elif channel.kind == "slack":
            # The secret of a Slack webhook is its address.
            body = {"text": slack_text(notice, broker, self._url)}
            await self._post(secret.url or "", msgspec.json.encode(body), "")
        else:
            body = webhook_body(notice, broker, self._url)
            await self._post(secret.url or "", msgspec.json.encode(body), secret.secret or "")

    async def _post(self, url: str, content: bytes, secret: str) -> None:
        headers = {"Content-Type": "application/json"}
        if secret:
            headers[SIGNATURE] = "sha256=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=SECONDS))
        try:
            async with self._session.post(url, data=content, headers=headers, allow_redirects=False) as response:
                status = response.status
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            reason = f"no answer within {SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            raise DeliveryFailed(f"the channel's address cannot be reached: {reason or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise DeliveryFailed(f"the channel's address answered with status {status}")

    async def _send_mail(self, channel: Channel, notice: Notice, broker: str) -> None:
        if not self._mail.host:
            raise DeliveryFailed("no mail server is configured. Start the console with --smtp HOST:PORT.")
        to = channel.to if isinstance(channel.to, list) else [channel.to or ""]
        try:
            await asyncio.to_thread(self._mail_now, [str(each) for each in to], notice, broker)
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise DeliveryFailed(f"the mail server did not take the message: {_reason(error)}") from None

    def _mail_now(self, to: list[str], notice: Notice, broker: str) -> None:
        mail = self._mail
        message = EmailMessage()
        message["From"] = mail.sender
        message["To"] = ", ".join(to)
        message["Subject"] = " ".join(f"[{broker}] {notice.subject}".split())[:200]
        message.set_content("\n".join([*lines(notice), "", self._url]))
        context = ssl.create_default_context(cafile=mail.ca or None)
        if mail.tls == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(mail.host, mail.port, timeout=SECONDS, context=context)
        else:
            server = smtplib.SMTP(mail.host, mail.port, timeout=SECONDS)
        with server:
            if mail.tls == "starttls":
                server.starttls(context=context)
            if mail.user:
                server.login(mail.user, mail.password)
            refused = server.send_message(message)
        if refused:
            # The others have it: to send it again would tell them twice.
            reasons = {to: f"{code} {words.decode('utf-8', 'replace')}" for to, (code, words) in refused.items()}
            log.warning("the mail server refused some recipients", refused=reasons)


def _reason(error: Exception) -> str:
    """What a mail server said, in its words."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        each = (f"{to}: {_said(code, words)}" for to, (code, words) in error.recipients.items())
        return f"it refused all recipients: {'; '.join(each)}"
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"it refused the login: {_said(error.smtp_code, error.smtp_error)}. See --smtp-user."
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return f"{error} Is --smtp-tls right?"
    if isinstance(error, smtplib.SMTPResponseException):
        return _said(error.smtp_code, error.smtp_error)
    return str(error) or type(error).__name__


def _said(code: int, words: bytes | str) -> str:
    return f"{code} {words.decode('utf-8', 'replace') if isinstance(words, bytes) else words}"


def mail_from(smtp: str) -> Mail:
    """A mail server at HOST:PORT that asks for nothing."""
    host, _, port = smtp.rpartition(":")
    return Mail(host=host, port=int(port or 25), tls="none")
