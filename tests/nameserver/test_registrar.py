"""What is registered with which name server, and when, hours in milliseconds."""

from __future__ import annotations

import json
import zlib

from shmq.addresses import Address
from shmq.daemon.logic.effects import Reply, Report
from shmq.daemon.nameserver.registrar import (
    ANSWER_TIMEOUT_MS,
    BACKOFF_MS_MAX,
    CONNECT_TIMEOUT_MS,
    REGISTER_INTERVAL_MS,
    Connect,
    Cut,
    RegisteredBroker,
    Registrar,
    RegistrarEffect,
    Send,
)
from shmq.daemon.nameserver.registration import GONE, QueueEntry, Version
from shmq.protocol.acl import KeyPair, is_signed
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from tests.nameserver.desk import Desk

QUEUES = QueueEntry(4, 4, 6, 0)
TOPICS = {"orders": QUEUES, "bills": QUEUES}
FIRST = Version(timestamp=1700000000000, counter=1)
SECOND = Version(timestamp=1700000001000, counter=2)


def new_registrar(*servers: str, host: str = "10.0.0.1") -> Registrar:
    return Registrar(servers or ("ns:9876",), RegisteredBroker("DefaultCluster", "broker-a", host, 10911))


def sent(effects: list[RegistrarEffect]) -> list[Command]:
    return [effect.command for effect in effects if isinstance(effect, Send)]


def reports(effects: list[RegistrarEffect]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Report)]


def accept(registrar: Registrar, request: Command, now_ms: int, server: str = "ns:9876") -> list[RegistrarEffect]:
    return registrar.answered(server, request.reply(), now_ms)


def test_it_registers_at_once_and_every_thirty_seconds() -> None:
    registrar = new_registrar()
    assert registrar.announce(TOPICS, FIRST, 0) == [Connect("ns:9876")]
    (request,) = sent(registrar.connected("ns:9876", "192.168.0.9", 10))
    assert request.code == Request.REGISTER_BROKER and not request.is_oneway
    assert request.ext == {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": "10.0.0.1:10912",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(request.body) & 0x7FFFFFFF),
    }
    wrapper = json.loads(request.body)["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"] == {"counter": 1, "timestamp": 1700000000000}
    assert wrapper["topicConfigTable"].keys() == {"orders", "bills"}
    assert reports(accept(registrar, request, 20)) == ["registered as 10.0.0.1:10911 with name server ns:9876"]
    assert registrar.tick(20 + REGISTER_INTERVAL_MS - 1) == []
    (again,) = sent(registrar.tick(20 + REGISTER_INTERVAL_MS))
    assert again.body == request.body and again.opaque != request.opaque
    assert accept(registrar, again, 30 + REGISTER_INTERVAL_MS) == []


def test_a_change_is_registered_at_once_and_one_during_a_registration_with_the_next() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "", 0))
    assert registrar.announce(TOPICS, SECOND, 5) == []
    (second,) = sent(accept(registrar, first, 10))
    assert b'"counter":2' in second.body
    accept(registrar, second, 20)
    (third,) = sent(registrar.announce(TOPICS, FIRST, 30))
    assert b'"counter":1' in third.body


def test_what_is_announced_is_registered_when_all_that_can_be_reached_have_answered() -> None:
    registrar = new_registrar("a:1", "b:1", "refuses:1", "dead:1")
    registrar.announce(TOPICS, FIRST, 0)
    assert not registrar.is_registered(registrar.edition), "all of them may answer soon"
    registrar.lost("dead:1", "Connection refused", 0)
    requests = {server: sent(registrar.connected(server, "", 0))[0] for server in ("a:1", "b:1", "refuses:1")}
    registrar.answered("refuses:1", requests["refuses:1"].reply(Response.SYSTEM_ERROR), 1)
    accept(registrar, requests["a:1"], 1, "a:1")
    assert not registrar.is_registered(registrar.edition)
    registrar.announce(TOPICS | {"new": QUEUES}, SECOND, 2)
    (again,) = sent(accept(registrar, requests["b:1"], 3, "b:1"))
    assert registrar.is_registered(registrar.edition - 1), "what came after it delays no answer"
    assert not registrar.is_registered(registrar.edition)
    assert registrar.registered == {"a:1": "10.0.0.1:10911", "b:1": "10.0.0.1:10911"}
    registrar.lost("refuses:1", "", 3)
    registrar.lost("a:1", "", 3)
    accept(registrar, again, 4, "b:1")
    assert registrar.is_registered(registrar.edition)


def test_without_a_host_each_name_server_gets_the_address_it_sees() -> None:
    registrar = new_registrar("a:1", "b:1", host="")
    registrar.announce(TOPICS, FIRST, 0)
    for server, host, expected in (("a:1", "10.1.0.1", "10.1.0.1:10911"), ("b:1", "fd00::1", "[fd00::1]:10911")):
        (request,) = sent(registrar.connected(server, host, 0))
        assert request.ext["brokerAddr"] == expected
        assert request.ext["haServerAddr"] == expected.replace("10911", "10912")


def test_a_slave_says_which_it_is_and_where_it_ships_the_log_on() -> None:
    slave = RegisteredBroker("DefaultCluster", "broker-a", "10.0.0.2", 10911, ha_port=20912, broker_id=1)
    registrar = Registrar(("ns:9876",), slave)
    registrar.announce(TOPICS, FIRST, 0)
    registrar.tick(0)
    (request,) = sent(registrar.connected("ns:9876", "10.0.0.9", 0))
    assert (request.ext["brokerId"], request.ext["haServerAddr"]) == ("1", "10.0.0.2:20912")


def test_another_port_for_slaves_is_registered_everywhere_at_once_also_behind_an_answer_that_is_awaited() -> None:
    registrar = new_registrar("a:1", "b:1")
    registrar.announce(TOPICS, FIRST, 0)
    for server in ("a:1", "b:1"):
        (request,) = sent(registrar.connected(server, "", 0))
        if server == "a:1":
            accept(registrar, request, 1, server)
    assert registrar.ships_at(0, 2) == []
    (again,) = sent(registrar.ships_at(20912, 2))
    assert again.ext["haServerAddr"].endswith(":20912")
    (late,) = sent(accept(registrar, request, 3, "b:1"))
    assert late.ext["haServerAddr"].endswith(":20912")
    assert registrar.ships_at(20912, 4) == []


def test_one_topic_alone_is_padded_with_some_without_permission() -> None:
    registrar = new_registrar()
    registrar.announce({"TBW102": QUEUES}, FIRST, 0)
    (request,) = sent(registrar.connected("ns:9876", "", 0))
    table = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert len(table) > 1
    assert {name for name, topic in table.items() if topic["perm"]} == {"TBW102"}


def test_a_dead_name_server_is_tried_ever_more_slowly_and_reported_once() -> None:
    registrar = new_registrar()
    now_ms, waits, told = 0, [], []
    effects = registrar.announce(TOPICS, FIRST, now_ms)
    for _ in range(8):
        assert effects == [Connect("ns:9876")]
        told += reports(registrar.lost("ns:9876", "Connection refused", now_ms))
        began_ms = now_ms
        while not (effects := registrar.tick(now_ms)):
            now_ms += 50
        waits.append(now_ms - began_ms)
    assert waits == [250, 500, 1000, 2000, BACKOFF_MS_MAX, BACKOFF_MS_MAX, BACKOFF_MS_MAX, BACKOFF_MS_MAX]
    assert len(told) == 1 and "ns:9876 is not reached: Connection refused" in told[0]


def test_a_dead_name_server_delays_no_other() -> None:
    registrar = new_registrar("dead:1", "ns:9876")
    assert registrar.announce(TOPICS, FIRST, 0) == [Connect("dead:1"), Connect("ns:9876")]
    (request,) = sent(registrar.connected("ns:9876", "", 1))
    accept(registrar, request, 2)
    effects = registrar.tick(CONNECT_TIMEOUT_MS)
    assert effects[0] == Cut("dead:1") and "no connection in time" in reports(effects)[0]
    assert len(sent(registrar.announce(TOPICS, SECOND, CONNECT_TIMEOUT_MS + 1))) == 1


def test_a_silent_name_server_is_cut_off_and_tried_again() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (request,) = sent(registrar.connected("ns:9876", "", 0))
    assert registrar.tick(ANSWER_TIMEOUT_MS - 1) == []
    effects = registrar.tick(ANSWER_TIMEOUT_MS)
    assert effects[0] == Cut("ns:9876") and "no answer in time" in reports(effects)[0]
    assert accept(registrar, request, ANSWER_TIMEOUT_MS + 1) == []
    assert registrar.tick(ANSWER_TIMEOUT_MS + 1000) == [Connect("ns:9876")]
    (again,) = sent(registrar.connected("ns:9876", "", ANSWER_TIMEOUT_MS + 1001))
    assert reports(accept(registrar, again, ANSWER_TIMEOUT_MS + 1002)) != []


def test_a_refusal_is_reported_once_and_tried_again_in_thirty_seconds() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (request,) = sent(registrar.connected("ns:9876", "", 0))
    refusal = request.reply(Response.SYSTEM_ERROR, remark="register broker failed")
    effects = registrar.answered("ns:9876", refusal, 10)
    assert len(effects) == 1 and "refuses: 1 register broker failed" in reports(effects)[0]
    (again,) = sent(registrar.tick(10 + REGISTER_INTERVAL_MS))
    assert registrar.answered("ns:9876", again.reply(Response.SYSTEM_ERROR), 20 + REGISTER_INTERVAL_MS) == []


def test_what_answers_no_question_is_left_alone() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (request,) = sent(registrar.connected("ns:9876", "", 0))
    stranger = Command(0, opaque=request.opaque + 1, flag=1)
    assert registrar.answered("ns:9876", stranger, 1) == []
    assert registrar.answered("ns:9876", Command(40, opaque=request.opaque), 1) == []


def test_it_takes_leave_of_who_is_reached() -> None:
    registrar = new_registrar("a:1", "b:1", "c:1")
    registrar.announce(TOPICS, FIRST, 0)
    registrar.connected("a:1", "", 0)
    registrar.lost("c:1", "", 0)
    effects = registrar.stop()
    (leave,) = sent(effects)
    assert (leave.code, leave.is_oneway, leave.ext["brokerAddr"]) == (104, True, "10.0.0.1:10911")
    assert [effect for effect in effects if isinstance(effect, Cut)] == [Cut("a:1"), Cut("b:1")]
    assert registrar.tick(10**9) == []


def test_our_own_name_server_understands_it(desk: Desk) -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (request,) = sent(registrar.connected("ns:9876", "", 0))
    desk.server.connected(99, None, 0, remote=Address("10.0.0.1", 1), local=Address("10.0.0.9", 9876))
    effects = desk.server.handle(99, request, 0)
    assert isinstance(effects[0], Reply) and effects[0].command.code == Response.SUCCESS
    assert json.loads(desk.route(desk.connect(), "bills").body)["brokerDatas"][0]["brokerAddrs"] == {
        "0": "10.0.0.1:10911"
    }
    desk.server.handle(99, sent(registrar.stop())[0], 0)
    assert desk.route(desk.connect(), "bills").code == Response.TOPIC_NOT_EXIST


def topics_of(request: Command) -> set[str]:
    return set(json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"])


def test_a_change_goes_alone_to_what_has_taken_the_rest_and_everything_goes_every_thirty_seconds() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "", 0))
    accept(registrar, first, 0)
    more = TOPICS | {"new": QUEUES, "bills": GONE}
    (change,) = sent(registrar.announce(more, SECOND, 10))
    assert topics_of(change) == {"new", "bills"}
    accept(registrar, change, 20)
    (whole,) = sent(registrar.tick(REGISTER_INTERVAL_MS))
    assert topics_of(whole) == set(more)
    versions = [json.loads(each.body)["topicConfigSerializeWrapper"]["dataVersion"] for each in (change, whole)]
    assert versions[0] != versions[1], "a name server that has lost the rest would take it for known"


def test_a_change_that_is_refused_is_followed_by_everything_at_once_and_is_no_complaint() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "", 0))
    accept(registrar, first, 0)
    (change,) = sent(registrar.announce(TOPICS | {"new": QUEUES}, SECOND, 10))
    effects = registrar.answered("ns:9876", change.reply(Response.SYSTEM_ERROR), 20)
    (whole,) = sent(effects)
    assert topics_of(whole) == {*TOPICS, "new"} and reports(effects) == []
    assert not registrar.is_registered(registrar.edition)
    assert reports(registrar.answered("ns:9876", whole.reply(Response.SYSTEM_ERROR), 30)) != []
    assert registrar.tick(31) == [], "it is asked again in thirty seconds"


def test_after_a_standstill_everything_goes_and_not_the_change_alone() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "", 0))
    accept(registrar, first, 0)
    (whole,) = sent(registrar.announce(TOPICS | {"new": QUEUES}, SECOND, REGISTER_INTERVAL_MS))
    assert topics_of(whole) == {*TOPICS, "new"}, "a name server forgets who was silent for two minutes"


def test_with_a_key_pair_every_request_is_signed_and_without_one_none() -> None:
    who = RegisteredBroker("DefaultCluster", "broker-a", "10.0.0.1", 10911)
    registrar = Registrar(("ns:9876",), who, KeyPair("operations", "a-secret-text"))
    registrar.announce(TOPICS, FIRST, 0)
    (register,) = sent(registrar.connected("ns:9876", "", 0))
    (leave,) = sent(registrar.stop())
    for request in (register, leave):
        assert request.ext["AccessKey"] == "operations"
        assert is_signed(request.ext, request.body, secret_key="a-secret-text")
    assert leave.code == Request.UNREGISTER_BROKER
    plain = new_registrar()
    plain.announce(TOPICS, FIRST, 0)
    (register,) = sent(plain.connected("ns:9876", "", 0))
    assert not {"AccessKey", "Signature"} & register.ext.keys()


def test_a_fenced_master_takes_leave_and_registers_again_when_it_leads() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "192.168.0.9", 0))
    accept(registrar, first, 5)
    (leave,) = sent(effects := registrar.fence(True, 10))
    assert (leave.code, leave.ext["brokerId"], leave.is_oneway) == (Request.UNREGISTER_BROKER, "0", True)
    assert reports(effects) == ["this broker is fenced: no name server gives its address to clients"]
    assert registrar.fence(True, 20) == [] and registrar.registered == {}
    assert registrar.announce(TOPICS | {"more": QUEUES}, SECOND, 30) == [], "nothing is said meanwhile"
    assert registrar.is_registered(registrar.edition), "a topic that is made now waits for no name server"
    assert registrar.tick(10 * REGISTER_INTERVAL_MS) == []
    (again,) = sent(registrar.fence(False, 10 * REGISTER_INTERVAL_MS))
    assert again.code == Request.REGISTER_BROKER and b"more" in again.body
    assert reports(accept(registrar, again, 10 * REGISTER_INTERVAL_MS + 5))


def test_the_answer_to_a_registration_of_before_the_fence_makes_it_known_nowhere() -> None:
    registrar = new_registrar()
    registrar.announce(TOPICS, FIRST, 0)
    (first,) = sent(registrar.connected("ns:9876", "192.168.0.9", 0))
    registrar.fence(True, 10)
    assert accept(registrar, first, 20) == [] and registrar.registered == {}


def test_a_connection_that_opens_while_the_master_is_fenced_says_nothing() -> None:
    registrar = new_registrar()
    registrar.fence(True, 0)
    assert registrar.announce(TOPICS, FIRST, 0) == [Connect("ns:9876")]
    assert registrar.connected("ns:9876", "192.168.0.9", 10) == []
    (first,) = sent(registrar.fence(False, 20))
    assert first.code == Request.REGISTER_BROKER
