"""Commands that cannot be done, in NSQ's codes and words, for nsqd's protocol and nsqlookupd's.

Only a FIN, REQ or TOUCH that came too late leaves the connection open; everything else closes it, because client and
broker no longer agree on what comes next.
"""

from __future__ import annotations

from headrace.errors import BatchTooLarge, HeadraceError, InvalidQueue, InvalidTopic

# What a client sent is repeated to it up to this many characters.
ECHO_MAX = 128
_CODES: dict[type[HeadraceError], str] = {
    InvalidTopic: "E_BAD_TOPIC",
    InvalidQueue: "E_BAD_CHANNEL",
    BatchTooLarge: "E_BAD_MESSAGE",
}


class CommandError(HeadraceError):
    """A command that is answered with an error."""

    def __init__(self, nsq_code: str, text: str = "", *, fatal: bool = True) -> None:
        super().__init__(text)
        self.nsq_code = nsq_code
        self.fatal = fatal


def translate(command: str, error: HeadraceError) -> CommandError:
    """What the broker refused of a command."""
    if isinstance(error, CommandError):
        return error
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return CommandError(code, f"{command} {error}")
    return CommandError(f"E_{command}_FAILED", f"{command} failed {error}")


def quoted(raw: bytes) -> str:
    """What a client sent, in quotes, everything unusual escaped."""
    text = raw[:ECHO_MAX].decode("utf-8", "backslashreplace")
    return '"' + "".join(each if each.isprintable() and each not in '"\\' else _escape(each) for each in text) + '"'


def plain(raw: bytes) -> str:
    """The same without quotes, as NSQ shows numbers and commands."""
    return quoted(raw)[1:-1]


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character.encode("unicode_escape").decode()
