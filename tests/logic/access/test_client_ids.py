"""A client id belongs to the account that uses it: what is meant for a client reaches no other account's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.logic.access import client_ids
from shmq.daemon.logic.access.client_ids import ClientIds
from shmq.daemon.logic.access.rights import EVERYTHING, Permission, Rights
from shmq.daemon.logic.access.rules import read_rules
from shmq.daemon.logic.access.text import read_access_text
from shmq.errors import PermissionDenied
from shmq.properties import encode_properties
from shmq.protocol.acl import sign
from shmq.protocol.body import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.request_reply import reply_topic
from tests.broker.durability.live_logic import LOCAL, REMOTE, LiveLogic, live_logic

SECRETS = {"alice12": "alice-secret", "mallory": "mallory-secret"}
RULES = read_rules(
    read_access_text(
        "accounts:\n"
        + "".join(
            f"- accessKey: {name}\n  secretKey: {secret}\n  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: SUB\n"
            for name, secret in SECRETS.items()
        )
    )
)
ALICE, MALLORY = 2, 3
CONNECTIONS = {ALICE: "alice12", MALLORY: "mallory"}
ID = "10.0.0.9@4711"


@pytest.fixture
def logic(tmp_path: Path) -> Iterator[LiveLogic]:
    with live_logic(tmp_path, flush_sync=False) as logic:
        for connection_id in CONNECTIONS:
            logic.broker.connected(connection_id, None, logic.now_ms, remote=REMOTE, local=LOCAL)
        logic.admission.rules = RULES
        yield logic


def ask(logic: LiveLogic, who: int, code: int, ext: dict[str, object], body: bytes = b"") -> Command | None:
    fields = {name: str(value) for name, value in ext.items()}
    signed = sign(fields, body, access_key=CONNECTIONS[who], secret_key=SECRETS[CONNECTIONS[who]])
    return logic.replies.get(logic.ask(code, signed, body, connection_id=who))


def beat(logic: LiveLogic, who: int, client_id: str = ID) -> int:
    data = HeartbeatData(client_id, [ConsumerData("g", [SubscriptionData("orders")])], [ProducerData("askers")])
    reply = ask(logic, who, Request.HEART_BEAT, {}, encode_body(data))
    assert reply is not None
    return reply.code


def pushed(logic: LiveLogic) -> list[int]:
    """Reply to the client; return the connections that get it."""
    fields = dict(zip("abcdefgh", ("p", reply_topic("DefaultCluster"), "TBW102", 4, 0, 0, 0, 0), strict=True))
    text = encode_properties({"REPLY_TO_CLIENT": ID, "CORRELATION_ID": "1"})
    ask(logic, ALICE, Request.SEND_REPLY_MESSAGE_V2, fields | {"i": text}, b"secret")
    codes = Request.PUSH_REPLY_MESSAGE_TO_CLIENT
    return [connection_id for connection_id, command in logic.notices if command.code == codes]


def test_a_reply_goes_to_the_account_that_asked_whichever_client_says_its_id(logic: LiveLogic) -> None:
    assert beat(logic, ALICE) == Response.SUCCESS
    assert beat(logic, MALLORY) != Response.SUCCESS
    assert pushed(logic) == [ALICE]
    assert logic.broker._registry.members("g") == [ID]
    assert beat(logic, MALLORY, "another") == Response.SUCCESS


def test_the_id_of_a_client_that_is_away_for_a_moment_cannot_be_taken(logic: LiveLogic) -> None:
    beat(logic, ALICE)
    logic.take(logic.broker.disconnected(ALICE, logic.now_ms))
    assert beat(logic, MALLORY) != Response.SUCCESS
    logic.broker.connected(ALICE, None, logic.now_ms, remote=REMOTE, local=LOCAL)
    assert pushed(logic) == []
    assert beat(logic, ALICE) == Response.SUCCESS


@pytest.mark.parametrize("code", [Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ])
def test_no_client_locks_or_unlocks_for_one_of_another_account(logic: LiveLogic, code: int) -> None:
    beat(logic, ALICE)
    queue = b'{"topic":"orders","brokerName":"test","queueId":0}'
    body = b'{"consumerGroup":"g","clientId":"%s","mqSet":[%s]}' % (ID.encode(), queue)
    (by_alice, by_mallory) = (ask(logic, who, code, {}, body) for who in (ALICE, MALLORY))
    assert by_alice is not None and by_alice.code == Response.SUCCESS
    assert by_mallory is not None and by_mallory.code != Response.SUCCESS


def rights(name: str) -> Rights:
    return Rights(name, lambda _: Permission.PUB)


def test_an_id_is_free_again_when_its_client_has_long_been_away() -> None:
    ids = ClientIds()
    ids.use(ID, rights("alice12"), 0)
    with pytest.raises(PermissionDenied, match="another account"):
        ids.use(ID, rights("mallory"), 599_000)
    ids.use(ID, rights("mallory"), 601_000)
    with pytest.raises(PermissionDenied, match="another account"):
        ids.check(ID, rights("alice12"), 602_000)


def test_an_account_with_many_ids_pushes_out_none_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_ids, "IDS_MAX", 3)
    ids = ClientIds()
    ids.use(ID, rights("alice12"), 0)
    for number in range(5):
        ids.use(f"mallory-{number}", rights("mallory"), 1)
    with pytest.raises(PermissionDenied):
        ids.check(ID, rights("mallory"), 2)
    ids.use("mallory-0", rights("alice12"), 2)


def test_who_may_do_everything_owns_nothing_and_is_never_refused() -> None:
    ids = ClientIds()
    ids.use(ID, EVERYTHING, 0)
    ids.use(ID, rights("alice12"), 0)
    ids.use(ID, EVERYTHING, 1)
    ids.check(ID, rights("alice12"), 2)
