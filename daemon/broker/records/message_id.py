"""Addresses of brokers and clients as records and message ids carry them.

The form of an id itself is `shmq.protocol.message_id`'s.
"""

import socket
from functools import lru_cache
from struct import Struct

from shmq.addresses import Address
from shmq.protocol.message_id import message_id_text

_PORT = Struct(">i")
_UNKNOWN = bytes((127, 0, 0, 1))
UNKNOWN_HOST = Address("127.0.0.1", 0)


@lru_cache(4096)
def host_bytes(address: Address) -> bytes:
    """Return an address as records and message ids carry it: 8 bytes for IPv4, 20 for IPv6.

    A host that is a name, which only --advertise can bring, counts as 127.0.0.1: an id has no room for names.
    """
    host, port = address
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host.partition("%")[0])
    except OSError:
        packed = _UNKNOWN
    return packed + _PORT.pack(port)


def offset_message_id(address: Address, log_position: int) -> str:
    """Return the id of the message at a log position of the broker at an address."""
    return message_id_text(host_bytes(address), log_position)
