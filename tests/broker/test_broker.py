"""Requests in, effects out: dispatch, life of connections, member notices."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Close, Effect, Notify, Reply
from shmq.daemon.logic.requests import Peer
from shmq.errors import ForeignNamespace, ShmqError, SubscriptionConflict, UsageError
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.codes import Codec, Language, Request, Response, Role
from shmq.protocol.command import FLAG_ONEWAY, FLAG_REPLY, Command
from shmq.protocol.failure import error_of
from tests.broker.memory_log import MemoryLog

PID_NAMESPACE = 4026531836


def peer_of(pid: int) -> Peer:
    return Peer(pid=pid, uid=1000, gid=1000, start=pid * 10, pid_namespace=PID_NAMESPACE)


class Client:
    """Drives one connection of a broker."""

    def __init__(self, broker: Broker, connection_id: int, *, tcp: bool = False) -> None:
        self.broker = broker
        self.connection_id = connection_id
        self.name = f"client-{connection_id}"
        broker.connected(connection_id, None if tcp else peer_of(connection_id), 0)

    def effects(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: object) -> list[Effect]:
        now_ms = int(str(more.pop("now_ms", 0)))
        command = Command(code=code, opaque=7, ext=ext or {}, body=body, **more)  # type: ignore[arg-type]
        return self.broker.handle(self.connection_id, command, now_ms)

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **more: object) -> Command:
        """The reply, which always comes first."""
        first = self.effects(code, ext, body, **more)[0]
        assert isinstance(first, Reply) and first.connection_id == self.connection_id
        assert first.command.opaque == 7 and first.command.flag == FLAG_REPLY
        return first.command

    def fail(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> ShmqError:
        error = error_of(self.ask(code, ext, body))
        assert error is not None
        return error

    def attach(self, **changes: str) -> Command:
        ext = {"clientId": self.name, "role": "3", "abi": "1", "version": "0.1.0", "pidNamespace": str(PID_NAMESPACE)}
        return self.ask(Request.ATTACH, ext | changes)

    def beat(self, *groups: str, topic: str = "t", tags: str = "*", now_ms: int = 0) -> list[Effect]:
        consumers = [ConsumerData(group, [SubscriptionData(topic=topic, subString=tags)]) for group in groups]
        body = encode_body(HeartbeatData(self.name, consumers, [ProducerData("p")]))
        return self.effects(Request.HEART_BEAT, body=body, now_ms=now_ms)


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


def notified(effects: list[Effect]) -> list[tuple[int, str]]:
    return [
        (effect.connection_id, effect.command.ext["consumerGroup"])
        for effect in effects
        if isinstance(effect, Notify)
        and effect.command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED
        and effect.command.is_oneway
    ]


def test_an_unknown_request_is_answered_as_rocketmq_answers_it(broker: Broker) -> None:
    reply = Client(broker, 1).ask(9999)
    assert (reply.code, reply.remark) == (Response.REQUEST_CODE_NOT_SUPPORTED, " request type 9999 not supported")


def test_a_reply_is_in_the_encoding_of_its_request(broker: Broker) -> None:
    client = Client(broker, 1)
    assert client.ask(Request.GET_ALL_TOPIC_CONFIG, codec=Codec.BINARY).codec == Codec.BINARY
    assert client.ask(9999, codec=Codec.BINARY).codec == Codec.BINARY
    assert client.ask(Request.GET_ALL_TOPIC_CONFIG).codec == Codec.JSON


@pytest.mark.parametrize("code", [9999, Request.GET_ALL_TOPIC_CONFIG, Request.UPDATE_AND_CREATE_TOPIC])
def test_a_oneway_request_is_never_answered(broker: Broker, code: int) -> None:
    assert Client(broker, 1).effects(code, flag=FLAG_ONEWAY) == []


def test_a_stray_reply_and_a_gone_connection_are_ignored(broker: Broker) -> None:
    client = Client(broker, 1)
    assert client.effects(Request.STATUS, flag=FLAG_REPLY) == []
    broker.disconnected(1, 0)
    assert client.effects(Request.STATUS) == []
    assert broker.disconnected(1, 0) == []


def test_members_get_a_notice_of_a_newcomer_which_gets_none(broker: Broker) -> None:
    first, second = Client(broker, 1), Client(broker, 2)
    first.attach()
    second.attach()
    assert notified(first.beat("g")) == []
    effects = second.beat("g")
    assert isinstance(effects[0], Reply)
    assert notified(effects) == [(1, "g")]
    assert second.ask(38, {"consumerGroup": "g"}).body == b'{"consumerIdList":["client-1","client-2"]}'


def test_a_rocketmq_client_gets_a_notice_of_its_own_coming(broker: Broker) -> None:
    client = Client(broker, 1, tcp=True)
    assert notified(client.beat("g")) == [(1, "g")]


def test_a_vanished_client_is_gone_at_once_and_its_groups_get_a_notice(broker: Broker, tables: Any) -> None:
    clients = [Client(broker, number) for number in (1, 2, 3)]
    for client in clients:
        client.attach()
        client.beat("g", "h") if client.connection_id == 1 else client.beat("g")
    assert sorted(tables.clients) == [0, 1, 2]
    assert notified(broker.disconnected(1, 5)) == [(2, "g"), (3, "g")]
    assert sorted(tables.clients) == [1, 2]
    assert clients[1].ask(38, {"consumerGroup": "g"}).body == b'{"consumerIdList":["client-2","client-3"]}'


def test_unregistering_tells_the_others(broker: Broker) -> None:
    first, second = Client(broker, 1), Client(broker, 2)
    for client in (first, second):
        client.attach()
        client.beat("g")
    effects = first.effects(Request.UNREGISTER_CLIENT, {"clientID": first.name, "consumerGroup": "g"})
    assert notified(effects) == [(2, "g")]


def test_an_empty_group_has_no_list(broker: Broker) -> None:
    reply = Client(broker, 1).ask(38, {"consumerGroup": "g"})
    assert (reply.code, reply.remark) == (Response.SYSTEM_ERROR, "no consumer for this group, g")


def test_a_conflicting_local_member_learns_why(broker: Broker) -> None:
    first, second = Client(broker, 1), Client(broker, 2)
    first.attach()
    second.attach()
    first.beat("g")
    (effect,) = second.beat("g", tags="fruit")
    assert isinstance(effect, Reply)
    assert isinstance(error_of(effect.command), SubscriptionConflict)


def test_the_list_for_a_topic_names_those_that_divide_it(broker: Broker) -> None:
    clients = [Client(broker, 1), Client(broker, 2)]
    for client, topic in zip(clients, ("t", "u"), strict=True):
        client.attach()
        client.beat("g", topic=topic)
    for topic, body in (("t", b'{"consumerIdList":["client-1"]}'), ("u", b'{"consumerIdList":["client-2"]}')):
        assert clients[0].ask(38, {"consumerGroup": "g", "topic": topic}).body == body
    assert clients[0].ask(38, {"consumerGroup": "g", "topic": "v"}).remark == "no consumer for this group, g"
    Client(broker, 3, tcp=True).beat("g")
    # A client of RocketMQ asks for no topic, and divides its own with those that are named to it.
    with_stock = b'{"consumerIdList":["client-1","client-3"]}'
    for ext, body in (
        ({}, with_stock),
        ({"topic": "t"}, with_stock),
        ({"topic": "u"}, b'{"consumerIdList":["client-2"]}'),
    ):
        assert clients[0].ask(38, {"consumerGroup": "g", **ext}).body == body


def test_a_heartbeat_needs_an_attached_client_with_its_own_name(broker: Broker) -> None:
    client = Client(broker, 1)
    body = encode_body(HeartbeatData("another"))
    assert isinstance(client.fail(Request.HEART_BEAT, body=body), UsageError)
    client.attach()
    assert "from client" in str(client.fail(Request.HEART_BEAT, body=body))
    assert client.fail(Request.HEART_BEAT, body=b"x").code == Response.SYSTEM_ERROR
    assert client.fail(Request.HEART_BEAT, body=encode_body(HeartbeatData(""))).code == Response.SYSTEM_ERROR


def test_a_heartbeat_that_finds_no_room_registers_no_member(broker: Broker, tables: Any) -> None:
    tables.group_max = 0
    client = Client(broker, 1)
    client.attach()
    (effect,) = client.beat("g")
    assert isinstance(effect, Reply) and error_of(effect.command) is not None
    assert client.ask(38, {"consumerGroup": "g"}).code == Response.SYSTEM_ERROR


def test_a_tcp_member_gets_its_retry_topic(broker: Broker, tables: Any) -> None:
    Client(broker, 1, tcp=True).beat("g")
    assert tables.topic("%RETRY%g").write_queues == 1
    local = Client(broker, 2)
    local.attach()
    local.beat("h")
    assert tables.topic("%RETRY%h") is None
    assert tables.groups() == ["g", "h"]


def test_a_silent_tcp_client_is_closed_and_a_silent_local_one_is_not(broker: Broker) -> None:
    local, remote = Client(broker, 1), Client(broker, 2, tcp=True)
    local.attach()
    local.beat("g", now_ms=0)
    remote.beat("g", now_ms=0)
    assert broker.tick(120_000) == []
    effects = broker.tick(120_001)
    assert effects[0] == Close(2, "no heartbeat in time")
    assert notified(effects) == [(1, "g")]
    assert broker.tick(10**9) == []


def test_a_dead_process_is_found_although_its_socket_lives_on(broker: Broker, tables: Any) -> None:
    first, second = Client(broker, 1), Client(broker, 2)
    for client in (first, second):
        client.attach()
        client.beat("g")
    tables.dead.add((1, 10))
    effects = broker.tick(1)
    assert effects[0] == Close(1, "process 1 has died")
    assert notified(effects) == [(2, "g")]
    assert sorted(tables.clients) == [1]


def test_slots_of_processes_that_died_before_our_start_are_dropped(broker: Broker, tables: Any) -> None:
    tables.client_put(77, 770, 3)
    tables.client_put(78, 780, 3)
    tables.dead.add((77, 770))
    assert broker.tick(1) == []
    assert tables.clients == {1: (78, 780, 3)}


def test_the_status_shows_members_and_their_disagreement(broker: Broker) -> None:
    first, second = Client(broker, 1), Client(broker, 2, tcp=True)
    first.attach()
    first.beat("g", now_ms=1000)
    second.beat("g", topic="other", now_ms=2000)
    status = msgspec.json.decode(first.ask(Request.STATUS, now_ms=5000).body)
    assert status["broker"]["name"] == "default" and status["broker"]["uptimeMs"] == 5000
    group = status["consumerGroups"]["g"]
    assert group["conflicts"] == 1 and group["differsSinceMs"] == 3000
    assert group["members"]["client-1"]["transport"] == "shm"
    assert group["members"]["client-2"] == {
        "transport": "tcp",
        "language": "PYTHON",
        "version": 409,
        "seenMs": 3000,
        "subscription": {"other": "*"},
    }
    mine = status["connections"][0]
    assert (mine["clientId"], mine["pid"], mine["clientSlot"], mine["consumerGroups"]) == ("client-1", 1, 0, ["g"])
    assert status["producerGroups"] == {"p": ["client-1", "client-2"]}


CODES = st.sampled_from([*Request, 0, 9999])
FIELDS = st.sampled_from(
    [
        "clientId",
        "role",
        "abi",
        "pidNamespace",
        "clientSlot",
        "topic",
        "consumerGroup",
        "group",
        "groupName",
        "queueId",
        "commitOffset",
        "timestamp",
        "readQueueNums",
        "writeQueueNums",
        "perm",
        "attributes",
        "clientID",
        "topicSysFlag",
    ]
)
NUMBERS = st.sampled_from(["0", "1", "-1", "3", "9" * 30, "²", ""])
FIELD_VALUES = NUMBERS | st.sampled_from(["t", "g", "true", "+message.type=FIFO"]) | st.text(max_size=5)
BODIES = st.binary(max_size=20) | st.sampled_from([encode_body(HeartbeatData("client-1")), b"{}", b'{"groupName":"g"}'])


@given(
    requests=st.lists(
        st.tuples(
            CODES,
            st.dictionaries(FIELDS, FIELD_VALUES, max_size=8),
            st.binary(max_size=20)
            | st.sampled_from([encode_body(HeartbeatData("client-1")), b"{}", b'{"groupName":"g"}']),
            st.sampled_from([0, FLAG_REPLY, FLAG_ONEWAY, 3]),
        ),
        max_size=12,
    )
)
def test_whatever_is_asked_there_is_one_reply_at_most_and_first(
    new_tables: Any,
    requests: list[tuple[int, dict[str, str], bytes, int]],
) -> None:
    tables = new_tables()
    broker = Broker(
        tables,
        BrokerSettings(broker_name="b", version="0", abi=1, generation=1, pid_namespace=PID_NAMESPACE),
        now_ms=0,
        log=MemoryLog(tables),
    )
    client = Client(broker, 1)
    for code, ext, body, flag in requests:
        effects = client.effects(code, ext, body, flag=flag, language=Language.GO)
        replies = [number for number, effect in enumerate(effects) if isinstance(effect, Reply)]
        assert replies == ([] if flag else [0])


def test_roles_and_namespaces_are_distinguished(broker: Broker) -> None:
    client = Client(broker, 1)
    assert error_of(client.attach(pidNamespace="1")) is None  # the kernel's word counts, not the client's
    foreign = Client(broker, 2)
    broker.disconnected(2, 0)
    broker.connected(2, peer_of(2)._replace(pid_namespace=5), 0)
    assert isinstance(error_of(foreign.attach()), ForeignNamespace)
    assert error_of(foreign.attach(role=str(Role.NONE.value))) is None
