"""Headers of any legal message: what a stock broker stores is stored, however long its header is on the wire."""

import pytest

from shmq.properties import encode_properties
from shmq.protocol.codes import Request, Response
from shmq.testing import Broker
from tests.interop.peers.wire import Wire, encode

PULL = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
PULL |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}


@pytest.mark.parametrize("bridges", [1, 2])
def test_a_message_of_thousands_of_properties_is_stored_and_read_whatever_they_take_in_a_header(bridges: int) -> None:
    """32,400 bytes of properties are 100 KB as JSON, where a separator takes six."""
    text = encode_properties({f"k{number:04}": "v" for number in range(4050)})
    assert len(text) == 32_400
    fields = dict(zip("abcdefgh", ("p", "orders", "TBW102", "1", "0", "0", "0", "0"), strict=True)) | {"i": text}
    assert len(encode(Request.SEND_MESSAGE_V2, 1, fields, b"m")) > 64 << 10
    with Broker(tcp=True, bridges=bridges) as broker, Wire(broker.broker_address) as wire:
        for _ in range(2):  # the first one makes the topic
            reply = wire.ask(Request.SEND_MESSAGE_V2, fields, b"m")
            assert reply is not None and reply.code == Response.SUCCESS, reply
        found = wire.ask(Request.PULL_MESSAGE, PULL)
        assert found is not None and text.rstrip("\x02").encode() in found.body
