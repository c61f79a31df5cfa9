"""Connections that are open and say nothing lock no client out, and a refusal gives its reason."""

import contextlib
from collections.abc import Iterator

import pytest

from shmq.errors import BrokerNotRunning, ConnectError
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.header import encode_command
from tests.bridge.live_bridge import LiveBridge, RawPeer, running, wait_until

PLACES = 8
LIMITS = {"loopback_connections_max": PLACES, "refused_connections_max": 2, "idle_kept": 0.05}


@pytest.fixture
def bridge() -> Iterator[LiveBridge]:
    with running(tcp=True, limits=LIMITS) as live:
        yield live


@contextlib.contextmanager
def peers(bridge: LiveBridge, *, beat: bool) -> Iterator[list[RawPeer]]:
    """As many connections as there are places; with `beat` each is a member of a group."""
    found: list[RawPeer] = []
    try:
        for number in range(PLACES):
            peer = RawPeer(bridge.address)
            found.append(peer)
            data = HeartbeatData(f"client-{number}", [ConsumerData(f"g-{number}", [SubscriptionData("orders")])])
            code, body = (Request.HEART_BEAT, encode_body(data)) if beat else (Request.GET_BROKER_CONFIG, b"")
            assert peer.ask(code, body=body).code == Response.SUCCESS
        yield found
    finally:
        for peer in found:
            peer.close()


def is_answered(peer: RawPeer) -> bool:
    """Whether a member, which may have a notice that its group has changed, is served."""
    peer.send(encode_command(Command(code=Request.GET_BROKER_CONFIG, opaque=99)))
    replies = iter(peer.take, None)
    return next(reply for reply in replies if reply.is_reply and reply.opaque == 99).code == Response.SUCCESS


def asked(bridge: LiveBridge) -> Command | None:
    with contextlib.closing(RawPeer(bridge.address)) as peer, contextlib.suppress(ConnectionError):
        return peer.ask(Request.GET_BROKER_CONFIG)
    return None


def is_served(bridge: LiveBridge) -> bool:
    reply = asked(bridge)
    return reply is not None and reply.code == Response.SUCCESS


def test_silent_connections_make_room_the_oldest_first(bridge: LiveBridge) -> None:
    with peers(bridge, beat=False) as silent:
        wait_until(lambda: is_served(bridge), "a silent one has made room")
        assert silent[0].take() is None
        assert silent[-1].ask(Request.GET_BROKER_CONFIG).code == Response.SUCCESS


def test_members_stay_and_a_refusal_is_answered(bridge: LiveBridge) -> None:
    with peers(bridge, beat=True) as members:
        reply = wait_until(lambda: asked(bridge))
        assert reply.code == Response.SYSTEM_BUSY
        assert f"{PLACES} connections of 127.0.0.1 are open" in (reply.remark or "")
        error = error_of(reply)
        assert isinstance(error, ConnectError) and not isinstance(error, BrokerNotRunning) and error.hint
        assert all(is_answered(peer) for peer in members)
        with contextlib.closing(RawPeer(bridge.place)) as local:
            assert local.ask(Request.STATUS).code == Response.SUCCESS


def test_nothing_is_served_to_who_is_refused(bridge: LiveBridge) -> None:
    send = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    with peers(bridge, beat=True), contextlib.closing(RawPeer(bridge.address)) as refused:
        reply = refused.ask(Request.SEND_MESSAGE_V2, send, b"x")
        assert reply.code == Response.SYSTEM_BUSY
        assert refused.take() is None, "the connection is closed behind the answer"
    assert bridge.store.topic_find("orders") < 0
