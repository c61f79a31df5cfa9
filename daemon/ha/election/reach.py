"""The addresses at which the brokers of a group reach each other, from the coordination store.

HOST:PORT/HOST:PORT      of the broker, and where it ships its log
"""

from __future__ import annotations

from typing import NamedTuple

from shmq.addresses import parse_address
from shmq.errors import ProtocolError, UsageError
from shmq.options.broker import Options


class Reach(NamedTuple):
    """Both addresses of one broker."""

    broker: str
    ha: str

    @property
    def text(self) -> str:
        """The text that `read_reach` reads."""
        return f"{self.broker}/{self.ha}"


def read_reach(text: str) -> Reach:
    """Read what another broker has written.

    Raises:
        ProtocolError: these are no two addresses.
    """
    broker, _, ha = text.partition("/")
    try:
        for address in (broker, ha):
            parse_address(address)
    except UsageError as error:
        raise ProtocolError(f"the leader is said to be at {text[:300]!r}, HOST:PORT/HOST:PORT is needed") from error
    return Reach(broker, ha)


def reach_of(options: Options) -> Reach:
    """Return where the others reach a broker: what it advertises, or where it listens."""
    host, port = parse_address(options.listen, name="listen")
    ha_host, ha_port = parse_address(options.ha_listen, name="ha_listen")
    if options.advertise:
        host, told = parse_address(options.advertise, name="advertise", port=0)
        port, ha_host = told or port, host
    return Reach(_text(host, port), _text(ha_host, ha_port))


def _text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
