"""Several machines: each has its own disk, clocks and process, and only the network between them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from simulation.machine import Ending, UnhandledError
from simulation.storage import FileNode
from simulation.world import World

PORT = 7000


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data.upper())
    except ConnectionError:
        pass
    finally:
        writer.close()


async def serve(runtime) -> None:
    await asyncio.start_server(echo, "0.0.0.0", PORT)
    await asyncio.Event().wait()


def two_machines(seed: int = 1) -> World:
    return World(seed, names=("server", "client"))


async def settle() -> None:
    """Longer than any delay of a healthy network."""
    await asyncio.sleep(5)


async def start_server(world: World) -> None:
    world.machines["server"].start(serve)
    await settle()


def client(world: World, main) -> None:
    """Run a coroutine on the client's machine."""
    world.machines["client"].start(lambda runtime: main())


async def ask(reader, writer, text: bytes, patience: float = 10.0) -> bytes:
    writer.write(text)
    async with asyncio.timeout(patience):
        return await reader.readexactly(len(text))


def test_a_port_without_a_listener_refuses_at_once():
    world = two_machines()

    async def scenario():
        world.machines["server"].start(lambda runtime: asyncio.sleep(1000))

        async def main():
            began = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("server", PORT)
            assert asyncio.get_running_loop().time() - began < 1

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())
    assert world.counts["refused"] == 1


@pytest.mark.parametrize("ending", ["kill", "power_cut"])
def test_a_killed_process_refuses_and_a_dark_machine_is_silent(ending: str):
    world = two_machines()

    async def scenario():
        await start_server(world)
        getattr(world.machines["server"], ending)()

        async def main():
            wanted = ConnectionRefusedError if ending == "kill" else TimeoutError
            with pytest.raises(wanted):
                async with asyncio.timeout(30):
                    await asyncio.open_connection("server", PORT)

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())
    assert bool(world.counts["unanswered"]) is (ending == "power_cut")


@pytest.mark.parametrize("seed", range(10))
def test_a_kill_ends_connections_and_a_power_cut_only_once_the_machine_is_back(seed: int):
    world = two_machines(seed)
    server = world.machines["server"]

    async def scenario():
        await start_server(world)

        async def main():
            reader, writer = await asyncio.open_connection("server", PORT)
            assert await ask(reader, writer, b"a") == b"A"
            server.power_cut()
            with pytest.raises(TimeoutError):
                await ask(reader, writer, b"b", patience=100)
            server.start(serve)
            with pytest.raises(ConnectionResetError):
                await ask(reader, writer, b"c", patience=100)
            reader, writer = await asyncio.open_connection("server", PORT)
            assert await ask(reader, writer, b"d") == b"D"
            server.kill()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await ask(reader, writer, b"", patience=100) or await reader.readexactly(1)
            writer.close()

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())


def test_a_paused_process_takes_connections_and_answers_when_it_goes_on():
    world = two_machines()
    server = world.machines["server"]

    async def scenario():
        await start_server(world)

        async def main():
            old = await asyncio.open_connection("server", PORT)
            server.pause()
            new = await asyncio.open_connection("server", PORT)
            for reader, writer in (old, new):
                with pytest.raises(TimeoutError):
                    await ask(reader, writer, b"abc", patience=60)
            server.resume()
            for reader, writer in (old, new):
                async with asyncio.timeout(5):
                    assert await reader.readexactly(3) == b"ABC"
                writer.close()

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())
    assert world.counts["pause"] == 1


def test_a_paused_process_finds_that_time_has_passed():
    world = World(1)
    times: list[float] = []

    async def main(runtime):
        while True:
            times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

    async def scenario():
        world.machine.start(main)
        await asyncio.sleep(3.5)
        world.machine.pause()
        await asyncio.sleep(10)
        world.machine.resume()
        await asyncio.sleep(1.2)

    world.play(scenario())
    assert times == [0, 1, 2, 3, 13.5, 14.5]


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_link_that_is_cut_in_one_direction(direction: str):
    """What the server hears arrives; what it answers does not, or the other way round."""
    world = two_machines()
    heard: list[bytes] = []

    async def listen(reader, writer):
        try:
            while data := await reader.read(1000):
                heard.append(data)
                writer.write(data)
        except ConnectionError:
            pass

    async def main_of_server(runtime):
        await asyncio.start_server(listen, "0.0.0.0", PORT)
        await asyncio.Event().wait()

    async def scenario():
        world.machines["server"].start(main_of_server)
        await settle()

        async def main():
            reader, writer = await asyncio.open_connection("server", PORT)
            link = ("client", "server") if direction == "there" else ("server", "client")
            world.network.cut(*link, both=False)
            with pytest.raises(TimeoutError):
                await ask(reader, writer, b"x", patience=60)
            assert heard == ([] if direction == "there" else [b"x"])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(60):
                    await asyncio.open_connection("server", PORT)

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())


def test_what_waits_for_a_cut_link_comes_late_or_the_connection_is_reset():
    counts = {"late": 0, "reset": 0}

    def run(seed: int) -> None:
        world = two_machines(seed)

        async def scenario():
            await start_server(world)

            async def main():
                reader, writer = await asyncio.open_connection("server", PORT)
                world.network.cut("client", "server")
                with pytest.raises(TimeoutError):
                    await ask(reader, writer, b"x", patience=30)
                world.network.heal("client", "server")
                try:
                    async with asyncio.timeout(30):
                        assert await reader.readexactly(1) == b"X"
                    counts["late"] += 1
                except ConnectionResetError:
                    counts["reset"] += 1
                writer.close()

            client(world, main)
            await world.machines["client"].process.wait()

        world.play(scenario())

    for seed in range(30):
        run(seed)
    assert counts["late"] > 5
    assert counts["reset"] > 5


def test_a_slow_link_is_slow():
    world = two_machines()

    async def scenario():
        await start_server(world)

        async def main():
            reader, writer = await asyncio.open_connection("server", PORT)
            world.network.slow("client", "server", 5.0)
            began = asyncio.get_running_loop().time()
            await ask(reader, writer, b"x", patience=1000)
            assert asyncio.get_running_loop().time() - began > 1
            writer.close()

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())


def test_names_and_loopback():
    world = two_machines()

    async def scenario():
        await start_server(world)

        async def main():
            with pytest.raises(OSError, match="not known"):
                await asyncio.open_connection("nowhere", PORT)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", PORT)

        client(world, main)
        await world.machines["client"].process.wait()

    world.play(scenario())


def test_a_power_cut_changes_the_boot_id_and_a_kill_does_not():
    world = World(1)
    seen: list[str] = []

    async def main(runtime):
        seen.append(runtime.boot_id)
        await asyncio.Event().wait()

    async def scenario():
        for end in (world.machine.kill, world.machine.power_cut, world.machine.kill):
            world.machine.start(main)
            await asyncio.sleep(1)
            end()

    world.play(scenario())
    assert seen[0] == seen[1]
    assert seen[1] != seen[2]


def test_clocks_jump_and_drift_apart():
    world = World(1, names=("a", "b"))
    calendars: dict[str, list[int]] = {"a": [], "b": []}

    async def scenario():
        for name, seen in calendars.items():

            async def main(runtime, seen=seen):
                while True:
                    seen.append(runtime.clock.now_ms())
                    await asyncio.sleep(1)

            world.machines[name].start(main)
        await asyncio.sleep(1.5)
        world.machines["a"].jump_clock(-3600)
        world.machines["b"].drift_clock(2.0)
        await asyncio.sleep(2)
        assert [world.machines[name].clock.local(world.time) for name in ("a", "b")] == [3.5, 5.5]

    world.play(scenario())
    a, b = calendars["a"], calendars["b"]
    assert [after - before for before, after in itertools.pairwise(a)] == [1000, -3599_000, 1000]
    # Its seconds are shorter, and there are more of them.
    assert len(b) == 6
    assert [after - before for before, after in itertools.pairwise(b)] == [1000] * 5


def test_a_hung_disk_answers_when_it_is_repaired():
    world = World(1)
    finished: list[float] = []

    async def main(runtime):
        executor = runtime.offload.serial_executor("journal")
        file = runtime.disk.open("f", write=True, create=True)
        done = asyncio.get_running_loop().create_future()
        executor.write(file, 0, b"x", done.set_result)
        await runtime.offload.run(file.size)
        await done
        finished.append(world.time)

    async def scenario():
        world.machine.hang_disk()
        process = world.machine.start(main)
        await asyncio.sleep(100)
        assert not finished
        world.machine.repair_disk()
        await process.wait()

    world.play(scenario())
    assert 100 <= finished[0] < 101
    assert world.counts["operation hung"] >= 2


def test_full_failing_and_slow_disks():
    world = World(1)

    async def main(runtime):
        file = runtime.disk.open("f", write=True, create=True)
        began = world.time
        for _ in range(100):
            await runtime.offload.run(file.size)
        usual, began = world.time - began, world.time
        world.machine.slow_disk(50)
        for _ in range(100):
            await runtime.offload.run(file.size)
        assert world.time - began > 5 * usual
        world.machine.fill_disk(3)
        with pytest.raises(OSError, match="No space"):
            file.write(0, [b"four"])
        world.machine.repair_disk()
        file.write(0, [b"four"])
        world.machine.fail_syncs(1.0)
        with pytest.raises(OSError, match="Input/output"):
            await runtime.offload.run(file.sync)

    assert world.run(main) is Ending.DONE


def test_a_disk_is_wiped_and_restored():
    world = World(1)

    def contents() -> dict[str, bytes]:
        return {path: bytes(node.volatile) for path, node in world.machine.storage.files()}

    def write(value: bytes):
        async def main(runtime):
            runtime.disk.mkdir("d")
            runtime.disk.open("d/f", write=True, create=True).write(0, [value])

        return main

    world.run(write(b"old"))
    backup = world.machine.storage.copy()
    world.run(write(b"new"))
    assert contents() == {"d/f": b"new"}
    world.machine.restore_disk(backup)
    assert contents() == {"d/f": b"old"}
    world.run(write(b"again"))
    node = backup.find("d/f")
    assert isinstance(node, FileNode)
    assert node.volatile == b"old"
    world.machine.wipe_disk()
    assert contents() == {}


def test_what_a_process_raises_fails_the_scenario():
    world = two_machines()

    async def main(runtime):
        await asyncio.sleep(1)
        raise ValueError("wrong")

    async def scenario():
        world.machines["client"].start(main)
        await asyncio.sleep(1000)

    with pytest.raises(ValueError, match="wrong"):
        world.play(scenario())


def test_a_process_that_kills_its_own_machine_runs_nothing_more():
    world = World(1)
    after: list[int] = []

    async def main(runtime):
        world.machine.kill()
        after.append(1)

    async def scenario():
        assert await world.machine.start(main).wait() is Ending.KILLED

    world.play(scenario())
    assert after == []


def test_the_same_seed_gives_the_same_trace_on_several_machines():
    def digest(seed: int) -> str:
        world = World(seed, names=("server", "a", "b"))

        async def talk(runtime):
            reader, writer = await asyncio.open_connection("server", PORT)
            for number in range(20):
                await ask(reader, writer, b"%d" % number)
            writer.close()

        async def scenario():
            world.machines["server"].start(serve)
            await settle()
            world.machines["b"].drift_clock(1.01)
            for name in ("a", "b"):
                world.machines[name].start(talk)
            await asyncio.sleep(0.001)
            world.machines["server"].pause()
            await asyncio.sleep(1)
            world.machines["server"].resume()
            for name in ("a", "b"):
                await world.machines[name].process.wait()

        world.play(scenario())
        return world.trace.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_a_listener_that_dies_while_a_connection_is_made():
    """The connection is refused, is reset, or ends; it never hangs."""
    endings: set[str] = set()

    def run(seed: int) -> None:
        world = two_machines(seed)

        async def scenario():
            await start_server(world)

            async def main():
                async with asyncio.timeout(60):
                    try:
                        reader, writer = await asyncio.open_connection("server", PORT)
                        assert await reader.read() == b""
                        writer.close()
                        endings.add("end")
                    except ConnectionError as error:
                        endings.add(type(error).__name__)

            world.network.slow("client", "server", 1.0)
            client(world, main)
            await asyncio.sleep(world.stream("moment").uniform(0, 3))
            world.machines["server"].kill()
            await world.machines["client"].process.wait()

        world.play(scenario())

    for seed in range(40):
        run(seed)
    assert endings == {"end", "ConnectionRefusedError", "ConnectionResetError"}


def test_an_error_of_a_process_that_is_killed_is_not_forgotten():
    world = World(1)

    async def main(runtime):
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.Event().wait()

    async def scenario():
        world.machine.start(main)
        await asyncio.sleep(1)
        world.machine.kill()

    with pytest.raises(UnhandledError, match="ZeroDivisionError"):
        world.play(scenario())
