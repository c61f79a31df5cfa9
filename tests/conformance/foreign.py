"""What clients of RocketMQ store and ours do not: properties of any words, any time of birth, any flags."""

import shmq
from shmq.protocol.codes import Request


def store_foreign(
    local: shmq.Connection,
    topic: str,
    properties: str,
    body: bytes = b"x",
    *,
    born_ms: int = 1_700_000_000_000,
    sys_flag: int = 0,
) -> None:
    """Store a message in queue 0 of a topic, with a property text as it is."""
    ext = {"a": "shop", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": str(sys_flag), "g": str(born_ms), "h": "0"}
    ext |= {"i": properties, "j": "0", "k": "false", "l": "0", "m": "false"}
    local._local().wire.control.request(Request.SEND_MESSAGE_V2, ext, body=body)
