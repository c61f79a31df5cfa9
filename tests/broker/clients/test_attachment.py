"""Attaching: which clients may, and which slot each gets."""

from typing import Any

import msgspec
import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Close, Effect, Notify, Reply
from shmq.daemon.logic.requests import Peer
from shmq.delay_levels import DEFAULT_DELAY_LEVELS
from shmq.errors import ConnectError, ForeignNamespace, RemoteError, SegmentFull, ShmqError, UsageError, VersionMismatch
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from tests.broker.memory_log import MemoryLog

PID_NAMESPACE = 4026531836
GENERATION = f"{0xC0FFEE:016x}"
KEPT = {"clientSlot": "0", "slotGeneration": "1", "generation": GENERATION}


def peer(pid: int = 100, *, namespace: int = PID_NAMESPACE, start: int = 1000) -> Peer:
    return Peer(pid=pid, uid=0, gid=0, start=start, pid_namespace=namespace)


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


def attach(broker: Broker, connection_id: int, who: Peer | None, **changes: str) -> list[Effect]:
    broker.connected(connection_id, who, 0)
    fields = {"clientId": "c", "role": "3", "abi": "1", "version": "0.1.0", "pidNamespace": str(PID_NAMESPACE)}
    return broker.handle(connection_id, Command(code=Request.ATTACH, ext=fields | changes), 0)


def failure(effects: list[Effect]) -> ShmqError:
    (effect,) = effects
    assert isinstance(effect, Reply)
    error = error_of(effect.command)
    assert error is not None
    return error


def body(effects: list[Effect]) -> dict[str, Any]:
    assert isinstance(effects[0], Reply)
    assert error_of(effects[0].command) is None
    found = msgspec.json.decode(effects[0].command.body)
    assert isinstance(found, dict)
    return found


def test_the_answer_holds_everything_a_client_maps_and_sends_by(broker: Broker, tables: Any) -> None:
    assert body(attach(broker, 1, peer())) == {
        "instance": {"broker_name": "default"},
        "clientSlot": 0,
        "slotGeneration": 1,
        "autoCreate": True,
        "defaultQueues": 8,
        "waitDurable": False,
        "cluster": "DefaultCluster",
        "messageDelayLevel": DEFAULT_DELAY_LEVELS,
        "timerMaxDelaySec": 259_200,
    }
    assert tables.clients == {0: (100, 1000, 3)}
    assert broker.is_attached(1)


def test_a_client_without_a_role_gets_no_slot_and_may_live_anywhere(broker: Broker, tables: Any) -> None:
    found = body(attach(broker, 1, peer(0, namespace=5, start=0), role="0", abi="99"))
    assert found["clientSlot"] == -1 and tables.clients == {}


@pytest.mark.parametrize(
    ("who", "changes", "error", "text"),
    [
        (
            peer(),
            {"abi": "2"},
            VersionMismatch,
            "segment layout 1, this client is shmq 0.1.0 with layout 2",
        ),
        (peer(namespace=77), {}, ForeignNamespace, f"PID namespace {PID_NAMESPACE}, this client in 77"),
        (peer(namespace=0), {"pidNamespace": "78"}, ForeignNamespace, "this client in 78"),
        (peer(namespace=0), {"pidNamespace": "0"}, ForeignNamespace, "this client in 0"),
        (peer(0, namespace=0), {}, ForeignNamespace, "its pid here is 0"),
        (peer(start=0), {}, ConnectError, "process 100 ended"),
        (None, {}, RemoteError, "request type 30001 not supported"),
        (peer(), {"clientId": ""}, RemoteError, "clientId is missing"),
        (peer(), {"clientId": "x" * 256}, UsageError, "256 characters"),
        (peer(), {"clientId": "a\nb"}, UsageError, "characters"),
        (peer(), {"clientId": "ä"}, UsageError, "characters"),
        (peer(), {"role": "4"}, RemoteError, "role"),
        (peer(), {"role": "x"}, RemoteError, "role"),
        (peer(), {"abi": ""}, RemoteError, "abi"),
        (peer(), {"clientSlot": "-2"}, RemoteError, "clientSlot"),
        (peer(), {"clientSlot": "9" * 19}, RemoteError, "clientSlot"),
    ],
)
def test_a_client_that_may_not_attach_gets_the_reason_and_nothing_else(
    broker: Broker, tables: Any, who: Peer | None, changes: dict[str, str], error: type[ShmqError], text: str
) -> None:
    refused = failure(attach(broker, 1, who, **changes))
    assert type(refused) is error and text in str(refused)
    assert tables.clients == {} and not broker.is_attached(1)


def test_a_version_refusal_says_what_to_install(broker: Broker) -> None:
    assert failure(attach(broker, 1, peer(), abi="2", version="9.9")).hint.startswith("pip install shmq==0.1.0")


def test_an_unreadable_namespace_is_taken_from_the_clients_word(broker: Broker) -> None:
    assert body(attach(broker, 1, peer(namespace=0)))["clientSlot"] == 0


def test_a_start_that_proc_hides_is_taken_from_the_clients_word_and_no_other(broker: Broker, tables: Any) -> None:
    assert body(attach(broker, 1, peer(start=0), processStart="900"))["clientSlot"] == 0
    assert body(attach(broker, 2, peer(7), clientId="seen", processStart="900"))["clientSlot"] == 1
    assert [start for _, start, _ in tables.clients.values()] == [900, 1000]


def test_who_proc_hides_keeps_its_slot_after_a_restart_of_the_bridge(tables: Any, settings: BrokerSettings) -> None:
    attach(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)), 1, peer(start=0), processStart="900")
    for start, slot in (("901", 1), ("900", 0)):
        after = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
        assert body(attach(after, 7, peer(start=0), processStart=start, **KEPT))["clientSlot"] == slot


def test_a_connection_attaches_once(broker: Broker) -> None:
    attach(broker, 1, peer())
    again = broker.handle(1, Command(code=Request.ATTACH, ext={"clientId": "d", "role": "0"}), 0)
    assert "attached already, as c" in str(failure(again))


def test_when_all_slots_are_taken_the_next_is_refused_until_one_is_free(broker: Broker, tables: Any) -> None:
    tables.client_max = 2
    for number in (1, 2):
        assert body(attach(broker, number, peer(number, start=number), clientId=f"c{number}"))
    assert isinstance(failure(attach(broker, 3, peer(3, start=3), clientId="c3")), SegmentFull)
    broker.disconnected(1, 0)
    broker.disconnected(3, 0)
    assert body(attach(broker, 3, peer(3, start=3), clientId="c3"))["clientSlot"] == 0


def test_after_a_restart_of_the_bridge_a_process_keeps_its_slot(tables: Any, settings: BrokerSettings) -> None:
    before = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    attach(before, 1, peer(50, start=500), clientId="first")
    slot = body(attach(before, 2, peer()))["clientSlot"]
    after = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    assert body(attach(after, 7, peer(), **KEPT | {"clientSlot": str(slot)}))["clientSlot"] == slot == 1
    assert sorted(tables.clients) == [0, 1]


@pytest.mark.parametrize(
    ("who", "changes"),
    [
        (peer(101), {}),  # another process
        (peer(start=1001), {}),  # a later process with the same pid
        (peer(), {"clientSlot": "5"}),  # a slot that is free
        (peer(), {"generation": "0" * 16}),  # a slot of other segments
        (peer(), {"generation": ""}),
        (peer(), {"slotGeneration": "0"}),  # a former life of the slot
        (peer(), {"slotGeneration": "2"}),
    ],
)
def test_a_slot_that_is_not_ones_own_is_not_kept(
    tables: Any, settings: BrokerSettings, who: Peer, changes: dict[str, str]
) -> None:
    attach(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)), 1, peer())
    after = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    assert body(attach(after, 7, who, **KEPT | changes))["clientSlot"] == 1
    assert tables.clients[0] == (100, 1000, 3)


def test_two_connections_of_one_process_never_share_a_slot(broker: Broker) -> None:
    attach(broker, 1, peer())
    other = attach(broker, 2, peer(), clientId="d", **KEPT)
    assert body(other)["clientSlot"] == 1


def test_a_slot_that_another_connection_of_the_process_has_by_now_is_not_kept(
    tables: Any, settings: BrokerSettings
) -> None:
    before = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    assert body(attach(before, 1, peer(), clientId="first"))["slotGeneration"] == 1
    before.disconnected(1, 0)
    other = body(attach(before, 2, peer(), clientId="second"))
    assert (other["clientSlot"], other["slotGeneration"]) == (0, 2)
    after = Broker(tables, settings, now_ms=0, log=MemoryLog(tables))
    assert body(attach(after, 7, peer(), clientId="first", **KEPT))["clientSlot"] == 1
    kept = body(attach(after, 8, peer(), clientId="second", **KEPT | {"slotGeneration": "2"}))
    assert (kept["clientSlot"], kept["slotGeneration"]) == (0, 2)


def test_a_client_id_is_held_by_one_connection(broker: Broker) -> None:
    attach(broker, 1, peer())
    refused = failure(attach(broker, 2, peer(101)))
    assert type(refused) is ConnectError and refused.retryable
    assert "in use by process 100" in str(refused)
    broker.disconnected(1, 0)
    broker.disconnected(2, 0)
    assert body(attach(broker, 2, peer(101)))["clientSlot"] == 0


def test_a_client_that_reconnects_before_its_old_end_was_noticed_takes_over(broker: Broker, tables: Any) -> None:
    attach(broker, 1, peer())
    beat = HeartbeatData("c", [ConsumerData("g", [SubscriptionData("t")])])
    broker.handle(1, Command(code=Request.HEART_BEAT, body=encode_body(beat)), 0)
    attach(broker, 3, peer(5, start=5), clientId="other")
    beat.clientID = "other"
    broker.handle(3, Command(code=Request.HEART_BEAT, body=encode_body(beat)), 0)
    effects = attach(broker, 2, peer(), **KEPT)
    assert body(effects)["clientSlot"] == 0
    assert effects[1] == Close(1, "c has connected again")
    assert [effect.connection_id for effect in effects if isinstance(effect, Notify)] == [3]
    assert tables.clients[0] == (100, 1000, 3)
    assert broker.disconnected(1, 0) == []
    assert tables.clients[0] == (100, 1000, 3), "the old connection's end must not take the new one's slot"
    broker.disconnected(2, 0)
    assert 0 not in tables.clients
