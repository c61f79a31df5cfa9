"""What the bridge makes of effects: one timer for all wishes, no fault that ends it, no reset that is lost."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from shmq.daemon.bridge.bridge import Bridge
from shmq.daemon.bridge.limits import BridgeLimits
from shmq.daemon.bridge.upstream import Upstreams
from shmq.daemon.logic.effects import Effect, Forward, Notify, Reply, Wake
from shmq.protocol.codes import Request
from shmq.protocol.command import Command, oneway
from shmq.protocol.header import CommandDecoder, encode_command
from tests.bridge.quiet_logic import QuietLogic
from tests.deadline import eventually_async

LONG = 4 << 20  # bytes; no socket takes that at once


class Scripted(QuietLogic):
    """Answers every command with the effects a test wants."""

    def __init__(self, answer: Callable[[int, Command], Sequence[Effect]] = lambda *_: ()) -> None:
        self.answer = answer
        self.wakings = 0
        self.wishes: list[Effect] = []
        self.fault: Exception | None = None

    def connected(self, connection_id: int, peer: Any, now_ms: int, *, remote: Any = None, local: Any = None) -> None:
        pass

    def handle(self, connection_id: int, command: Command, now_ms: int) -> Sequence[Effect]:
        return self.answer(connection_id, command)

    def disconnected(self, connection_id: int, now_ms: int) -> Sequence[Effect]:
        return ()

    def woken(self, now_ms: int) -> Sequence[Effect]:
        self.wakings += 1
        return ()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        if self.fault is not None:
            raise self.fault
        return self.wishes


@contextlib.asynccontextmanager
async def bridge_of(
    logic: Scripted, logged: list[str], upstreams: Upstreams | None = None
) -> AsyncIterator[tuple[Bridge, str]]:
    bridge = Bridge(logic, lambda event, **_: logged.append(event), limits=BridgeLimits(), upstreams=upstreams)
    with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        listener.setblocking(False)
        bridge.listen(listener)
        try:
            yield bridge, f"{directory}/s"
        finally:
            bridge.close()


def test_wishes_to_be_woken_share_one_timer_and_the_earliest_counts() -> None:
    async def scene() -> int:
        logic = Scripted()
        async with bridge_of(logic, []) as (bridge, _):
            logic.wishes = [Wake(60_000), Wake(30), Wake(40), Wake(50)]
            for _ in range(10):
                bridge.tick()
            await eventually_async(lambda: logic.wakings)
            await asyncio.sleep(0.1)  # not a wait: a timer of the same loop, due behind those of the wishes
            return logic.wakings

    assert asyncio.run(scene()) == 1


def test_each_effect_is_carried_out_although_one_before_it_failed() -> None:
    logged: list[str] = []

    def answer(connection_id: int, command: Command) -> Sequence[Effect]:
        reply = command.reply(body=b"whole")
        broken = Reply(connection_id - 1, object())  # type: ignore[arg-type]
        return [broken, Notify(connection_id, object()), Reply(connection_id, reply)]  # type: ignore[arg-type]

    async def scene() -> tuple[bytes, bytes]:
        async with bridge_of(Scripted(answer), logged) as (_, path), asyncio.timeout(60):
            unlucky, unlucky_writer = await asyncio.open_unix_connection(path)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_command(Command(code=1, opaque=1)))
            data = await reader.read(1 << 16)
            for each in (writer, unlucky_writer):
                each.close()
            return data, await unlucky.read()

    data, of_unlucky = asyncio.run(scene())
    assert b"whole" in data
    assert of_unlucky == b"", "a client that waits for an answer sees the end of its connection"
    assert logged.count("internal.error") == 2


def test_what_is_waited_for_is_said_once_a_turn_and_only_when_it_changed() -> None:
    async def scene() -> list[int]:
        version, said = 0, []
        async with bridge_of(Scripted(), []) as (bridge, _):
            bridge.call_when_settled(lambda: said.append(version), version=lambda: version)
            for _ in range(500):
                version += 1
                bridge.arrived(())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            bridge.arrived(())
            version += 1
            bridge.arrived(())
            bridge.settle()  # as after news, which need an answer whatever has changed
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return said

    assert asyncio.run(scene()) == [0, 500, 501]


def test_a_fault_in_a_tick_is_one_line_in_the_log() -> None:
    logged: list[str] = []

    async def scene() -> None:
        logic = Scripted()
        logic.fault = KeyError("broken on purpose")
        async with bridge_of(logic, logged) as (bridge, _):
            bridge.tick()

    asyncio.run(scene())
    assert logged == ["internal.error"]


def test_a_peer_that_is_slow_to_read_gets_every_reset_and_each_group_s_change_once() -> None:
    def answer(connection_id: int, command: Command) -> Sequence[Effect]:
        resets = [
            oneway(Request.RESET_CONSUMER_CLIENT_OFFSET, {"group": "g", "topic": topic}, opaque=opaque)
            for opaque, topic in enumerate(("a", "b"), 100)
        ]
        changes = [
            oneway(Request.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, opaque=opaque)
            for opaque, group in enumerate(("g", "h", "g"), 200)
        ]
        return [
            Reply(connection_id, command.reply(body=bytes(LONG))),
            *(Notify(connection_id, notice) for notice in (*resets, *changes)),
        ]

    async def scene() -> list[tuple[int, str]]:
        seen: list[tuple[int, str]] = []
        async with bridge_of(Scripted(answer), []) as (_, path), asyncio.timeout(20):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode_command(Command(code=1, opaque=1)))
            decoder = CommandDecoder()
            while len(seen) < 5:
                decoder.feed(await reader.read(1 << 16))
                while (command := decoder.take()) is not None:
                    about = command.ext.get("topic") or command.ext.get("consumerGroup", "")
                    seen.append((command.code, about))
            writer.close()
        return seen

    assert asyncio.run(scene()) == [(0, ""), (220, "a"), (220, "b"), (40, "g"), (40, "h")]


def test_what_a_primary_bridge_does_not_read_is_bounded() -> None:
    async def scene() -> int:
        written = 0
        with tempfile.TemporaryDirectory(prefix="shmq-") as directory, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(f"{directory}/p")
            silent.listen()  # the kernel takes connections for it, and none is ever read
            upstreams = Upstreams(Path(directory, "p"))
            logic = Scripted(lambda connection_id, command: [Forward(connection_id, command)])
            async with bridge_of(logic, [], upstreams) as (_, path), asyncio.timeout(30):
                _, writer = await asyncio.open_unix_connection(path)
                data = encode_command(Command(code=1, opaque=1, body=bytes(512 << 10)))
                with contextlib.suppress(ConnectionError):
                    while written < 64 << 20:
                        writer.write(data)
                        await writer.drain()
                        written += len(data)
                writer.close()
                upstreams.close()
        return written

    assert 8 << 20 < asyncio.run(scene()) < 32 << 20


def test_a_long_frame_has_longer_to_come_the_more_of_it_is_here() -> None:
    async def scene() -> list[bool]:
        alive = []
        limits = BridgeLimits()
        async with bridge_of(Scripted(), []) as (bridge, path), asyncio.timeout(20):
            for size in (1 << 10, 512 << 10):
                _, writer = await asyncio.open_unix_connection(path)
                writer.write(encode_command(Command(code=1, body=bytes(768 << 10)))[:size])
                await writer.drain()
                await eventually_async(lambda: bridge.budget.held_bytes == size)  # noqa: B023
                (connection,) = bridge._connections.values()
                needed = limits.first_frame_timeout + size / limits.frame_bytes_per_second_min
                for late in (-0.5, 0.5):
                    connection.check_time(bridge.now() + needed + late)
                    alive.append(connection._closing_since is None)
                await eventually_async(lambda: not bridge._connections)
                writer.close()
        return alive

    assert asyncio.run(scene()) == [True, False, True, False]
