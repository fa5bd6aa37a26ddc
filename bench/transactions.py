"""The load generator of transactions: each producer writes, commits, and begins the next at once.

`python -m bench.transactions` is driven as `bench.load` is. The second generation of the protocol (KIP-890), as clients
of Kafka 4 speak it: Produce takes its partitions into the transaction, EndTxn answers with the epoch of the next, which
is patched into requests that were built before. Where the last transaction's markers are still under way, a broker
refuses the next one's first batch, and it is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import requests
from bench.admin import GROUP, Admin
from bench.load import Result, Run, Spec, connect, in_threads, receive, serve

# The last transaction's markers are under way, or a coordinator has just been made.
NOT_YET = {14, 15, 16, 51}
AGAIN_SECONDS = 0.001


class Producer:
    """One transactional id on one connection."""

    def __init__(self, spec: Spec, number: int) -> None:
        name = f"bench-{spec['topic']}-{number:03d}"
        partitions = [(number + each) % spec["partitions"] for each in range(spec["partitions_each"])]
        source = (name, spec["source"]) if "source" in spec else None
        self._requests = requests.Transaction(
            name, spec["topic"], partitions, spec["records"] // len(partitions), source
        )
        with Admin(spec["host"], spec["port"]) as admin:
            self._requests.identify(*admin.own(name))
            if source is not None:
                admin.coordinator(name, GROUP)
        self._socket = connect(spec)
        self._view = memoryview(bytearray(4 * requests.MIB))
        self.taken: list[int] = []

    def _ask(self, frame: bytes | bytearray) -> memoryview:
        self._socket.sendall(frame)
        return receive(self._socket, self._view)

    def _until_taken(self, frame: bytearray, errors: Callable[[memoryview], list[int]]) -> None:
        while any(found := errors(self._ask(frame))):
            if {*found} - {0, *NOT_YET}:
                raise RuntimeError(f"a transaction was refused with errors {found}")
            time.sleep(AGAIN_SECONDS)

    def transact(self, read_to: int | None = None) -> None:
        """Write, and commit."""
        begin = time.monotonic_ns()
        self._until_taken(self._requests.produce, requests.produce_errors)
        if read_to is not None:
            self._requests.read_to(read_to)
            self._until_taken(self._requests.offsets, lambda reply: [requests.offsets_error(reply)])
        error, producer, epoch = requests.end_reply(self._ask(self._requests.end))
        if error:
            raise RuntimeError(f"a commit was refused with error {error}")
        self.taken.append(time.monotonic_ns() - begin)
        self._requests.identify(producer, epoch)

    def fetch(self, asked: requests.Fetch) -> list[tuple[int, int, int]]:
        return requests.fetched(self._ask(asked.frame))


def produce(spec: Spec) -> Run:
    """So many producers for so many seconds."""
    producers = [Producer(spec, number) for number in range(spec["producers"])]
    return _together(producers, spec, [each.transact for each in producers])


def transform(spec: Spec) -> Run:
    """Read a batch, write as much, commit both: each producer has a partition of its own to read, again and again."""
    rounds = spec["source_batches"]
    producers = [Producer(spec, number) for number in range(spec["producers"])]
    sock = connect(spec)
    view = memoryview(bytearray(1 << 16))
    count = spec["records"]
    made = requests.batch_of(count)
    for partition in range(len(producers)):
        for _ in range(rounds):
            sock.sendall(requests.produce(spec["source"], [(partition, made)]))
            receive(sock, view)

    def step(producer: Producer, partition: int) -> Callable[[], None]:
        asked = requests.fetch(spec["source"], [partition], max_wait_ms=500, partition_bytes=len(made), committed=True)
        turn = 0

        def once() -> None:
            nonlocal turn
            asked.move(0, turn % rounds * count)
            [(_, begin, end)] = producer.fetch(asked)
            if end - begin < len(made):
                raise RuntimeError(f"{end - begin} bytes were read where {len(made)} lie")
            producer.transact(turn % rounds * count + count)
            turn += 1

        return once

    return _together(producers, spec, [step(each, number) for number, each in enumerate(producers)])


def _together(producers: list[Producer], spec: Spec, steps: list[Callable[[], None]]) -> Run:
    # The first of each is not measured: it may wait for a coordinator that is being made.
    in_threads(steps)
    for each in producers:
        each.taken.clear()

    def run() -> Result:
        until = time.monotonic() + spec["seconds"]

        def work(step: Callable[[], None]) -> Callable[[], None]:
            def one() -> None:
                while time.monotonic() < until:
                    step()

            return one

        in_threads([work(step) for step in steps])
        taken = sorted(each for producer in producers for each in producer.taken)
        # A marker has an offset of its own in every partition that a transaction wrote to.
        appended = (len(taken) + len(producers)) * (spec["records"] + spec["partitions_each"])
        return {"transactions": len(taken), "appended": appended, "taken": taken}

    return run


KINDS: dict[str, Callable[[Spec], Run]] = {"produce": produce, "transform": transform}


if __name__ == "__main__":
    serve(KINDS)
