"""What clients of RocketMQ store and ours do not: properties of any words."""

import shmq
from shmq.protocol.codes import Request


def store_foreign(local: shmq.Connection, topic: str, properties: str, body: bytes = b"x") -> None:
    """Store a message in queue 0 of a topic, with a property text as it is."""
    ext = {"a": "shop", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    ext |= {"i": properties, "j": "0", "k": "false", "l": "0", "m": "false"}
    local._local().wire.control.request(Request.SEND_MESSAGE_V2, ext, body=body)
