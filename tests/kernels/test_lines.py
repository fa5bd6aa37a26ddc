from __future__ import annotations

from struct import pack
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels.conftest import interpreted

from headrace.doors.nsq.nsqd import lines

BOTH = [lines, interpreted("doors.nsq.nsqd.lines")]


def expected(text: bytes) -> bytes:
    wanted = [line for line in text.split(b"\n") if line]
    return pack(">i", len(wanted)) + b"".join(pack(">i", len(line)) + line for line in wanted)


@pytest.mark.parametrize("kernel", BOTH, ids=["installed", "interpreted"])
@given(text=st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\x00\xff", b"x" * 300])).map(b"".join))
@example(text=b"a\nb\nc")
@example(text=b"\n\n\n")
@example(text=b"")
def test_each_line_is_a_message(kernel: ModuleType, text: bytes):
    assert kernel.mpub_body(text, 300 * 1000) == expected(text)


@pytest.mark.parametrize("kernel", BOTH, ids=["installed", "interpreted"])
def test_a_line_that_is_too_long(kernel: ModuleType):
    assert kernel.mpub_body(b"abc\nde\n", 3) == expected(b"abc\nde\n")
    assert kernel.mpub_body(b"de\nabc", 2) is None
