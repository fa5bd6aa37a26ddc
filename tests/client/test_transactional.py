"""The producer of transactions against brokers that break: what was committed is there once, all else is nowhere."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.client.fake import CUT_AFTER, CUT_BEFORE, NOT_LEADER, OUT_OF_ORDER, Fault
from tests.client.fake_transactions import (
    CONCURRENT,
    FENCED,
    INVALID_STATE,
    LAST_EPOCH,
    NOT_COORDINATOR,
    FakeTransactions,
)

from headrace.client import (
    BrokerError,
    Client,
    ClientError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalProducer,
    TransactionError,
    TransactionUnresolved,
)
from headrace.format import records

PRODUCE, METADATA, FIND, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, OFFSETS = 0, 3, 10, 22, 24, 25, 26, 28
API_VERSIONS = 18
LOADING, TOO_LARGE, ABORTABLE, ID_MAPPING = 14, 10, 120, 49
COORDINATED = (INIT, ADD_PARTITIONS, ADD_OFFSETS, END, OFFSETS)

generations = pytest.mark.parametrize("second", [False, True], ids=["first", "second"])


async def ended(producer: TransactionalProducer, commit: bool) -> bool:
    """End a transaction however often it takes; whether it was committed."""
    while True:
        try:
            await (producer.commit() if commit else producer.abort())
            return commit
        except TransactionUnresolved:
            continue
        except TransactionAbortable:
            assert commit
            commit = False


@generations
@pytest.mark.parametrize("seed", range(15))
async def test_faults(seed: int, second: bool) -> None:
    """Cuts, moves, refusals and restarts of the producer: each transaction is there once and whole, or not at all."""
    dice = random.Random(seed)
    faults = 0
    async with FakeTransactions(2, 3, second=second) as fake, Client(fake.bootstrap, timeout=10) as client:

        def fault(node: int, api: int) -> Fault:
            nonlocal faults
            if faults >= 60 or api == API_VERSIONS or dice.random() > 0.15:
                return None
            faults += 1
            if dice.random() < 0.3:
                fake.logs[dice.randrange(3)].leader = dice.randrange(2)
            if dice.random() < 0.3:
                fake.coordinator = dice.randrange(2)
            if api == PRODUCE:
                return dice.choice([CUT_BEFORE, CUT_AFTER, CUT_AFTER, NOT_LEADER, CONCURRENT, TOO_LARGE, OUT_OF_ORDER])
            if api in COORDINATED:
                return dice.choice([CUT_BEFORE, CUT_AFTER, CUT_AFTER, NOT_COORDINATOR, LOADING, CONCURRENT])
            return dice.choice([CUT_BEFORE, CUT_AFTER, None])

        fake.fault = fault
        producer = client.transactional("x", linger=0, batch_bytes=60)
        await producer.init()
        committed: list[bytes] = []
        offset = None
        for number in range(40):
            if dice.random() < 0.1:
                # Its owner died, with whatever was open: the next one takes over.
                producer.begin()
                await producer.send("t", b"lost %d" % number, partition=dice.randrange(3))
                if dice.random() < 0.5:
                    await asyncio.sleep(0.01)
                await die(producer)
                producer = client.transactional("x", linger=0, batch_bytes=60)
                await producer.init()
            producer.begin()
            sent = [b"%d %d" % (number, each) for each in range(dice.randrange(1, 20))]
            try:
                for each, value in enumerate(sent):
                    await producer.send("t", value, partition=each % 3)
                    if dice.random() < 0.1:
                        await asyncio.sleep(0)
                if dice.random() < 0.5:
                    await producer.send_offsets("g", {("t", 0): number})
                    moved: int | None = number
                else:
                    moved = offset
            except TransactionAbortable:
                assert not await ended(producer, False)
                continue
            if await ended(producer, dice.random() < 0.7):
                committed += sent
                offset = moved
        fake.fault = lambda node, api: None
        await producer.close()
        assert faults > 5
        found = [value for log in fake.logs for value in log.committed]
        assert Counter(found) == Counter(committed)
        # In the order of sending, in each partition.
        for index, log in enumerate(fake.logs):
            assert log.committed == [value for value in committed if int(value.split()[1]) % 3 == index]
        assert fake.offsets == ({("g", ("t", 0)): offset} if offset is not None else {})


async def die(producer: TransactionalProducer) -> None:
    """End a producer without a word to the broker, as a killed process does."""
    await super(TransactionalProducer, producer).close(flush=False)


@generations
async def test_nothing_sent_is_no_transaction(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x") as producer:
            async with producer.transaction():
                pass
            producer.begin()
            await producer.abort()
            producer.begin()
            await producer.send_offsets("g", {})
            await producer.commit()
        assert END not in {api for _, api in fake.asked}


async def test_the_first_generation_announces_each_partition_once() -> None:
    async with FakeTransactions(partitions=3, second=False) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            for _ in range(2):
                async with producer.transaction():
                    for partition in (0, 1, 0, 1):
                        await producer.send("t", b"v", partition=partition)
                        await producer.flush()
                    for _ in range(2):
                        await producer.send_offsets("g", {("t", 0): 1})
            assert producer.identity[1] == 0
        asked = Counter(api for _, api in fake.asked)
        assert (asked[ADD_PARTITIONS], asked[ADD_OFFSETS], asked[OFFSETS], asked[END]) == (4, 4, 4, 2)
        assert [len(log.committed) for log in fake.logs] == [4, 4, 0]


async def test_the_second_generation_announces_nothing_and_counts_epochs() -> None:
    async with FakeTransactions(partitions=2) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            epochs = []
            for number in range(4):
                epochs.append(producer.identity[1])
                producer.begin()
                await producer.send("t", b"v", partition=number % 2)
                await producer.send_offsets("g", {("t", 0): 1})
                await (producer.commit() if number % 2 else producer.abort())
            assert epochs == [0, 1, 2, 3]
        assert not {ADD_PARTITIONS, ADD_OFFSETS} & {api for _, api in fake.asked}


async def test_epochs_run_out() -> None:
    async with FakeTransactions() as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            first = producer.identity[0]
        fake.known["x"].epoch = LAST_EPOCH - 3
        async with client.transactional("x", linger=0) as producer:
            identities = []
            for number in range(4):
                identities.append(producer.identity)
                async with producer.transaction():
                    await producer.send("t", b"%d" % number)
            assert identities == [(first, LAST_EPOCH - 2), (first, LAST_EPOCH - 1), (first + 1, 0), (first + 1, 1)]
        assert fake.logs[0].committed == [b"0", b"1", b"2", b"3"]


@generations
async def test_an_unanswered_commit_is_asked_again(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap, timeout=0.8) as client:
        async with client.transactional("x", linger=0) as producer:
            producer.begin()
            await producer.send("t", b"v")
            await producer.flush()
            fake.fault = lambda node, api: CUT_AFTER if api == END else None
            with pytest.raises(TransactionUnresolved, match="commit of x") as caught:
                await producer.commit()
            assert caught.value.retriable
            # Decided by the broker already: nothing else can be asked for now.
            with pytest.raises(ClientError, match="call it again"):
                await producer.abort()
            for use in (producer.begin, lambda: producer._accept()):
                with pytest.raises(ClientError, match="is not known"):
                    use()
            fake.fault = lambda node, api: None
            await producer.commit()
            async with producer.transaction():
                await producer.send("t", b"w")
        assert fake.logs[0].committed == [b"v", b"w"]


@generations
@pytest.mark.parametrize("api", [PRODUCE, END, OFFSETS])
async def test_fenced_at_any_step(api: int, second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        producer = client.transactional("x", linger=0)
        await producer.init()
        producer.begin()
        fake.fault = lambda node, asked: FENCED if asked == api else None
        failures: list[ClientError] = []
        delivery = await producer.send("t", b"v")
        for step in (producer.send_offsets("g", {("t", 0): 1}), producer.commit(), producer.abort()):
            try:
                await step
            except ClientError as error:
                failures.append(error)
        assert all(isinstance(each, ProducerFenced) for each in failures)
        assert failures
        assert delivery.done()
        with pytest.raises(ProducerFenced):
            producer.begin()
        await producer.close()


async def test_a_block_does_not_end_well_without_its_commit() -> None:
    async with FakeTransactions() as fake, Client(fake.bootstrap) as client:
        producer = client.transactional("x", linger=0)
        await producer.init()
        async with producer.transaction():
            await producer.send("t", b"v")
            await producer.abort()  # On purpose: nothing is left to do.

        async def fenced_unseen() -> None:
            async with producer.transaction():
                delivery = await producer.send("t", b"w")
                while not delivery.done():
                    await asyncio.sleep(0.001)

        fake.fault = lambda node, api: FENCED if api == PRODUCE else None
        with pytest.raises(ProducerFenced):
            await fenced_unseen()
        await producer.close()
        assert fake.logs[0].committed == []
        with pytest.raises(ClientError, match="acks=-1"):
            client.transactional("x", acks=1)


@generations
async def test_what_a_leader_calls_stale_is_asked_of_the_coordinator(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            turns = iter([INVALID_STATE])
            fake.fault = lambda node, api: next(turns, None) if api == PRODUCE else None
            producer.begin()
            delivery = await producer.send("t", b"v")
            with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
                await delivery
            with pytest.raises(TransactionAbortable):
                await producer.commit()
            await producer.abort()
            async with producer.transaction():
                await producer.send("t", b"w")
        assert fake.logs[0].committed == [b"w"]


@generations
@pytest.mark.parametrize("code", [INVALID_STATE, ID_MAPPING])
async def test_a_coordinator_that_knows_nothing_of_it(code: int, second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        producer = client.transactional("x", linger=0)
        await producer.init()
        producer.begin()
        await producer.send("t", b"v")
        fake.fault = lambda node, api: code if api == END else None
        uses = [producer.commit, producer.abort, producer.commit]
        if second and code == INVALID_STATE:
            # Aborted by its timeout, perhaps: that is found out by an abort.
            with pytest.raises(TransactionAbortable, match="INVALID_TXN_STATE"):
                await uses.pop(0)()
        for use in uses:
            with pytest.raises(TransactionError, match="cannot go on") as caught:
                await use()
            assert type(caught.value) is TransactionError
        await producer.close()


@generations
async def test_the_broker_wants_an_abort(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            for api in (END, PRODUCE, OFFSETS):
                turns = iter([ABORTABLE])
                fake.fault = lambda node, asked, api=api, turns=turns: next(turns, None) if asked == api else None  # type: ignore[misc]
                producer.begin()
                await producer.send("t", b"v")

                async def rest() -> None:
                    await producer.send_offsets("g", {("t", 0): 1})
                    await producer.commit()

                with pytest.raises(TransactionAbortable, match="TRANSACTION_ABORTABLE"):
                    await rest()
                await producer.abort()
            async with producer.transaction():
                await producer.send("t", b"w")
        assert fake.logs[0].committed == [b"w"]


@pytest.mark.parametrize("api", [ADD_PARTITIONS, ADD_OFFSETS])
@pytest.mark.parametrize("cut", [CUT_BEFORE, CUT_AFTER])
async def test_an_unanswered_announcement(api: int, cut: str) -> None:
    """Whether the coordinator heard of the transaction is not known: the abort works either way."""
    async with FakeTransactions(second=False) as fake, Client(fake.bootstrap, timeout=0.8) as client:
        async with client.transactional("x", linger=0) as producer:
            for before in (None, True, False):
                if before is not None:
                    producer.begin()
                    await producer.send("t", b"kept" if before else b"lost")
                    await producer.flush()
                    await (producer.commit() if before else producer.abort())
                fake.fault = lambda node, asked: cut if asked == api else None
                producer.begin()
                if api == ADD_PARTITIONS:
                    await producer.send("t", b"lost")
                    with pytest.raises(TransactionAbortable):
                        await producer.commit()
                else:
                    with pytest.raises(TransactionAbortable):
                        await producer.send_offsets("g", {("t", 0): 1})
                fake.fault = lambda node, asked: None
                await producer.abort()
                async with producer.transaction():
                    await producer.send("t", b"kept")
        assert fake.logs[0].committed == [b"kept"] * 4
        assert not fake.offsets


@generations
async def test_a_delivery_that_takes_too_long_spoils_the_transaction(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap, timeout=5) as client:
        async with client.transactional("x", linger=0, delivery_timeout=1.0) as producer:
            fake.fault = lambda node, api: NOT_LEADER if api == PRODUCE else None
            producer.begin()
            await producer.send("t", b"v")
            with pytest.raises(TransactionAbortable, match="NOT_LEADER"):
                await producer.commit()
            fake.fault = lambda node, api: None
            await producer.abort()
            async with producer.transaction():
                await producer.send("t", b"w")
        assert fake.logs[0].committed == [b"w"]


@generations
async def test_abort_fails_what_has_not_left(second: bool) -> None:
    async with FakeTransactions(second=second) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=60) as producer:
            producer.begin()
            delivery = await producer.send("t", b"v")
            await producer.abort()
            with pytest.raises(ClientError, match="was aborted"):
                await delivery
            producer.begin()
            await producer.send("t", b"w")
            await producer.commit()
        assert fake.logs[0].committed == [b"w"]
        assert fake.logs[0].end == 2


async def test_an_abort_leaves_no_announcement_of_nothing() -> None:
    async with FakeTransactions(second=False) as fake, Client(fake.bootstrap) as client:
        async with client.transactional("x", linger=0) as producer:
            for turns in range(8):
                producer.begin()
                await producer.send_batch("t", 0, records.build([(1, None, b"v", [])]))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await producer.abort()
        assert all(fake.announced)
        assert fake.announced


async def test_calls_out_of_turn() -> None:
    async with FakeTransactions() as fake, Client(fake.bootstrap) as client:
        producer = client.transactional("x")
        with pytest.raises(ClientError, match="call init"):
            producer.begin()
        await producer.init()
        with pytest.raises(ClientError, match="there is no transaction"):
            await producer.send("t", b"v")
        for use in (producer.commit, producer.abort):
            with pytest.raises(ClientError, match="there is no transaction"):
                await use()
        with pytest.raises(ClientError, match="there is no transaction"):
            await producer.init()
        producer.begin()
        with pytest.raises(ClientError, match="open already"):
            producer.begin()
        await producer.close()
        with pytest.raises(ClientError, match="closed"):
            producer.begin()


async def test_init_asks_until_the_last_transaction_is_over() -> None:
    async with FakeTransactions() as fake, Client(fake.bootstrap) as client:
        turns = iter([CONCURRENT, LOADING, NOT_COORDINATOR, CUT_AFTER, CUT_BEFORE])
        fake.fault = lambda node, api: next(turns, None) if api == INIT else None
        async with client.transactional("x") as producer:
            assert producer.identity[0] > 0
        assert Counter(api for _, api in fake.asked)[INIT] == 6
