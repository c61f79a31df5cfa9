"""Accounts with three bridges on one port: each of them asks who is there, and each hears of new accounts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.protocol.acl import sign
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.testing import Broker
from tests.bridge.cluster import BRIDGES, Cluster
from tests.bridge.live_bridge import RawPeer, wait_until

ACL = """
accounts:
- accessKey: administrator
  secretKey: {secret}
  admin: true
- accessKey: producer
  secretKey: {secret}
  topicPerms: [orders=PUB]
- accessKey: consumer
  secretKey: {secret}
  topicPerms: [orders=SUB]
  groupPerms: [workers=SUB]
"""
SEND = dict(zip("abcdefghi", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", ""), strict=True))
BOUNDS = {"topic": "orders", "queueId": "0"}
OFFSET = BOUNDS | {"consumerGroup": "workers"}


def write_accounts(path: Path, secret: str) -> None:
    """Replace the file in one step."""
    new = path.with_suffix(".new")
    new.write_text(ACL.format(secret=secret))
    new.chmod(0o600)
    os.replace(new, path)


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    write_accounts(path, "secret-one")
    return path


@pytest.fixture
def cluster(accounts: Path) -> Iterator[Cluster]:
    with Broker(tcp=True, bridges=3, acl=str(accounts)) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        cluster = Cluster(broker)
        yield cluster
        cluster.close()


def ask(
    peer: RawPeer, key: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"", secret: str = "secret-one"
) -> Command:
    signed = sign(ext or {}, body, access_key=key, secret_key=secret)
    peer.send(encode_command(Command(code=code, opaque=3, ext=signed, body=body)))
    while (command := peer.take()) is not None and not command.is_reply:
        pass  # a notice
    assert command is not None and command.opaque == 3
    return command


def refused(reply: Command) -> str:
    assert reply.code == Response.SYSTEM_ERROR  # what a client before 5.0 expects
    return reply.remark or ""


def test_every_bridge_asks_for_the_account_whatever_it_serves_itself(cluster: Cluster) -> None:
    beat = encode_body(HeartbeatData("c", [ConsumerData("workers", [SubscriptionData("orders", "*", 5)])]))
    for role in BRIDGES:
        peer = cluster.peer(role)
        assert "No accessKey" in refused(peer.ask(Request.SEND_MESSAGE_V2, SEND, b"x"))
        assert "No accessKey" in refused(peer.ask(Request.HEART_BEAT, body=beat))
        assert ask(peer, "producer", Request.SEND_MESSAGE_V2, SEND, b"x").code == Response.SUCCESS
        assert "Check signature" in refused(ask(peer, "producer", Request.SEND_MESSAGE_V2, SEND, b"x", "secret-two"))
        assert "No permission PUB" in refused(ask(peer, "consumer", Request.SEND_MESSAGE_V2, SEND, b"x"))
        assert "No permission SUB" in refused(ask(peer, "producer", Request.QUERY_CONSUMER_OFFSET, OFFSET))
        assert "No permission SUB" in refused(ask(peer, "producer", Request.HEART_BEAT, body=beat))
        assert ask(peer, "consumer", Request.HEART_BEAT, body=beat).code == Response.SUCCESS
        settings = b"maxMessageSize=4194304"
        assert "admin" in refused(ask(peer, "producer", Request.UPDATE_BROKER_CONFIG, body=settings))
        assert ask(peer, "administrator", Request.UPDATE_BROKER_CONFIG, body=settings).code == Response.SUCCESS
        peer.close()


def test_new_accounts_count_on_every_bridge_and_on_the_connections_there_are(cluster: Cluster, accounts: Path) -> None:
    peers = [cluster.peer(role) for role in BRIDGES]
    requests = (
        (Request.SEND_MESSAGE_V2, SEND, b"x"),
        (Request.GET_MAX_OFFSET, BOUNDS, b""),
        (Request.GET_ALL_TOPIC_CONFIG, {}, b""),  # the primary answers
    )

    def works(peer: RawPeer, secret: str) -> bool:
        return {ask(peer, "administrator", *request, secret).code for request in requests} == {Response.SUCCESS}

    assert all(works(peer, "secret-one") for peer in peers)
    write_accounts(accounts, "secret-two")
    wait_until(lambda: all(works(peer, "secret-two") for peer in peers), "the new accounts are in force everywhere")
    for peer in peers:
        for request in requests:
            assert "Check signature" in refused(ask(peer, "administrator", *request, "secret-one"))
