"""Whatever a peer sends, it gets one answer, and the answer can be written to the wire."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shmq.daemon.logic.effects import Reply
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.protocol.request_table import REQUESTS
from tests.nameserver.desk import Desk, registration_body, topic_config

CODES = sorted(Desk().server.served_codes)
FIELDS = sorted({field.name for code in CODES for field in REQUESTS[code].fields} | {"compressed", "bodyCrc32"})
VALUES = st.one_of(
    st.sampled_from(
        ["", "0", "1", "-1", "9" * 19, "true", "broker-a", "DefaultCluster", "orders", "h:1", ":1", "[::1]:1"]
    ),
    st.text(max_size=40),
)
BODIES = st.one_of(
    st.just(b""),
    st.just(registration_body(topic_config("orders"))),
    st.binary(max_size=60),
    st.sampled_from([b"{}", b"null", b"[]", b"{0:1}", b'{"queueDatas":[{"brokerName":"broker-a"}]}', b'{"counter":1}']),
)
COMMANDS = st.builds(
    Command,
    st.one_of(st.sampled_from(CODES), st.integers(-(1 << 31), (1 << 31) - 1)),
    ext=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8),
    body=BODIES,
    version=st.sampled_from([-1, 0, 36, 317, 401, 479]),
)
COMPLETE = {"brokerName": "broker-a", "brokerAddr": "h:1", "clusterName": "C", "haServerAddr": "h:2", "brokerId": "0"}


# A machine that pauses must not fail this: the bounds of hypothesis are in wall time.
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(COMMANDS, max_size=8))
@example([Command(103, ext=COMPLETE, body=b"null")])
@example([Command(217, ext={"topic": "t"}, body=b"null")])
@example([Command(105, ext={"topic": "ü" * 10_000})])
@example([Command(101, ext={"namespace": "n" * 30_000, "key": "k" * 30_000})])
def test_every_request_gets_one_answer_that_can_be_sent(commands: list[Command]) -> None:
    desk = Desk()
    desk.embed("orders", name="default")
    desk.register(desk.connect("10.0.0.1"), registration_body(topic_config("orders")))
    peer = desk.connect("10.0.0.66")
    for command in commands:
        effects = desk.server.handle(peer, command, desk.now_ms)
        replies = [effect for effect in effects if isinstance(effect, Reply)]
        assert len(replies) == 1 and replies[0].connection_id == peer
        encode_command(replies[0].command)
    desk.server.disconnected(peer, desk.now_ms)
    assert desk.server.tick(desk.now_ms + 10_000) == []
