"""A serial executor: jobs and writes off the loop, in order, compiled or not."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.waiting import SECONDS

from headrace.runtime import writer
from headrace.runtime.disk import SystemDisk, SystemFile
from headrace.runtime.offload import SerialDone, ThreadSerialExecutor

WAYS = [pytest.param(True, marks=pytest.mark.skipif(not writer.COMPILED, reason="it is not compiled")), False]


@pytest.fixture(params=WAYS, ids=["compiled", "as a job"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(writer, "COMPILED", request.param)
    return bool(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SystemFile]:
    opened = SystemDisk(str(tmp_path)).open("file", write=True, create=True)
    assert isinstance(opened, SystemFile)
    yield opened
    opened.close()


class Heard:
    """What a serial executor tells, and when the last of it has come."""

    def __init__(self, expected: int) -> None:
        self.told: list[tuple[str, BaseException | None]] = []
        self._expected = expected
        self._all = asyncio.Event()

    def of(self, name: str) -> SerialDone:
        def done(error: BaseException | None) -> None:
            self.told.append((name, error))
            if len(self.told) == self._expected:
                self._all.set()

        return done

    async def all(self) -> list[tuple[str, BaseException | None]]:
        await asyncio.wait_for(self._all.wait(), SECONDS)
        return self.told


async def write_once(file: SystemFile, position: int, data: bytes) -> BaseException | None:
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    heard = Heard(1)
    executor.write(file, position, data, heard.of("write"))
    try:
        return (await heard.all())[0][1]
    finally:
        executor.close()


async def test_what_was_written_is_there(compiled: bool, file: SystemFile) -> None:
    assert await write_once(file, 5, b"some words") is None
    assert file.read(0, 100) == bytes(5) + b"some words"


async def test_jobs_and_writes_keep_their_order(compiled: bool, file: SystemFile) -> None:
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    seen: list[bytes] = []
    rounds = 300
    heard = Heard(5 * rounds)
    names = []
    for turn in range(rounds):
        for number, name in enumerate(("write", "job", "write", "write", "job")):
            names.append(name)
            if name == "job":
                executor.submit(lambda: seen.append(file.read(0, 2)), heard.of(name))
            else:
                executor.write(file, 0, bytes((turn % 256, number)), heard.of(name))
        if turn % 3 == 0:
            # Now and then the executor has nothing under way, and is woken anew.
            await asyncio.sleep(0.001)
    told = await heard.all()
    executor.close()
    assert told == [(name, None) for name in names]
    assert seen == [bytes((turn % 256, number)) for turn in range(rounds) for number in (0, 3)]


async def test_a_short_write_goes_on_until_its_error(compiled: bool, file: SystemFile) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        error = await write_once(file, 99_990, b"0123456789 and what does not fit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(error, OSError)
    assert error.errno == errno.EFBIG
    assert file.read(99_990, 100) == b"0123456789"


async def test_an_error_is_not_told_twice(compiled: bool, file: SystemFile) -> None:
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    readable = SystemFile("readable", os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC))
    heard = Heard(1)
    executor.write(readable, 0, b"to a file that is only read", heard.of("refused"))
    [(_, error)] = await heard.all()
    assert isinstance(error, OSError)
    assert error.errno == errno.EBADF
    heard = Heard(1)
    executor.write(file, 0, b"to a file", heard.of("file"))
    assert await heard.all() == [("file", None)]
    executor.close()
    readable.close()


async def test_who_is_told_may_submit_more(compiled: bool, file: SystemFile) -> None:
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    heard = Heard(60)

    def more(left: int, name: str, error: BaseException | None) -> None:
        heard.of(name)(error)
        if left:
            executor.write(file, 0, b"%03d" % left, partial(more, left - 1, name))

    # Two chains in one executor: what the one submits meets what is under way for the other.
    executor.submit(lambda: None, partial(more, 29, "first"))
    executor.submit(lambda: None, partial(more, 29, "second"))
    told = await heard.all()
    executor.close()
    assert sorted(told, key=str) == [("first", None)] * 30 + [("second", None)] * 30


async def test_one_that_raises_does_not_keep_the_others_waiting(compiled: bool, file: SystemFile) -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda loop, context: raised.append(context["exception"]))
    executor = ThreadSerialExecutor("test", loop)
    heard = Heard(2)

    def broken(error: BaseException | None) -> None:
        raise ValueError("broken")

    executor.write(file, 0, b"first", broken)
    executor.submit(lambda: None, heard.of("second"))
    executor.write(file, 0, b"third", heard.of("third"))
    # All are done before the loop looks, so nothing more wakes it.
    while len(executor._results) < (2 if compiled else 3):
        time.sleep(0.001)  # noqa: ASYNC251
    assert await heard.all() == [("second", None), ("third", None)]
    executor.close()
    assert [type(each) for each in raised] == [ValueError]


async def test_closing_finishes_what_was_submitted(compiled: bool, file: SystemFile) -> None:
    before = threading.active_count()
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    heard = Heard(2)
    executor.write(file, 0, b"a write", heard.of("write"))
    executor.submit(lambda: None, heard.of("job"))
    executor.close()
    assert heard.told == [("write", None), ("job", None)]
    assert file.read(0, 100) == b"a write"
    assert threading.active_count() == before
    executor.close()
    # Its descriptors are somebody else's by now.
    with pytest.raises(RuntimeError, match="closed"):
        executor.write(file, 0, b"too late", heard.of("late"))
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(lambda: None, heard.of("late"))


@pytest.mark.skipif(not writer.COMPILED, reason="it is not compiled")
async def test_a_write_does_not_wait_for_the_interpreter(file: SystemFile) -> None:
    data = b"written meanwhile"
    file.allocate(len(data))
    executor = ThreadSerialExecutor("test", asyncio.get_running_loop())
    heard = Heard(1)
    interval = sys.getswitchinterval()
    with mmap.mmap(file.fileno(), len(data)) as seen:
        sys.setswitchinterval(100)
        try:
            executor.write(file, 0, data, heard.of("write"))
            until = time.monotonic() + 10
            # Nothing in here lets another thread of Python run.
            while seen[:] != data and time.monotonic() < until:
                pass
            assert seen[:] == data
        finally:
            sys.setswitchinterval(interval)
    assert await heard.all() == [("write", None)]
    executor.close()
