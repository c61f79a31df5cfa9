"""Without TCP ports a broker's own processes wait all the same: for messages of others, and for the disk."""

from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.testing import Broker
from tests.bridge.live_bridge import RawPeer

HOLD_MS = 600_000  # longer than the test waits for any answer


def test_a_held_pop_hears_a_local_send_without_tcp() -> None:
    """The second request is answered behind the first, so the pop is held when the message is sent."""
    with Broker(tcp=False) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=2)
        peer = RawPeer(broker.place)
        try:
            fields = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "maxMsgNums": "8", "initMode": "0"}
            fields |= {"invisibleTime": "60000", "pollTime": str(HOLD_MS), "bornTime": "0", "expType": "", "exp": ""}
            peer.send(encode_command(Command(code=Request.POP_MESSAGE, opaque=1, ext=fields)))
            assert peer.ask(Request.GET_ALL_TOPIC_CONFIG, opaque=2).code == Response.SUCCESS
            mq.send("orders", b"body")
            answer = peer.take()
            assert answer is not None and answer.code == Response.SUCCESS and b"body" in answer.body
        finally:
            peer.socket.close()
