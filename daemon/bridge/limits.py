"""What one connection, and all of them together, may cost the bridge.

`connection.py`, `bridge.py` and `sockets/reception.py` enforce these numbers. How many connections there may be follows
the descriptors that the process may have, unless options say it:

    descriptors  =  files and sockets of its own  +  local processes  +  TCP clients × sockets that each may need here

A TCP client may need one at each bridge that passes requests on to the primary one, and one at the embedded name
server. One address gets a share, so that its connections never shut the others out; the programs of this host, which
have one address together, get the larger part. An idle TCP connection takes about 4.5 KiB of memory.
"""

from dataclasses import dataclass, replace

from shmq.daemon.descriptors import raise_descriptor_limit
from shmq.errors import UsageError
from shmq.options.broker import Options
from shmq.protocol.frame import FRAME_BYTES_MAX, STOCK_FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """Bounds of the bridge; times in seconds."""

    connections_max: int = 1024  # of processes of this host, over the control socket; TCP takes none of these
    tcp_connections_max: int = 768
    address_connections_max: int = 64  # of one remote address
    loopback_connections_max: int = 512  # all programs of this host share one address
    more_places: str = "ulimit -n"  # what makes the two numbers above greater
    more_of_address: str = "ulimit -n"
    refused_connections_max: int = 64  # over one of these limits: their first request is answered with the reason
    idle_kept: float = 1.0  # at a limit a connection silent for longer, in no group, makes room
    frame_bytes_max: int = FRAME_BYTES_MAX
    skipped_bytes_max: int = STOCK_FRAME_BYTES_MAX  # a send over TCP up to that is dropped, but answered
    frame_bytes_max_unattached: int = 1 << 20  # a heartbeat fits; longer ones only once it is attached
    write_bytes_max: int = 8 << 20  # unread replies of one connection: twice the longest list
    write_bytes_high: int = 256 << 10  # above it the connection's requests wait until it reads
    in_flight_bytes_max: int = 256 << 20  # unfinished frames and unread replies of all connections
    unproven_bytes_max: int = 32 << 20  # of all that have not yet shown an account, where one is needed
    first_frame_timeout: float = 5.0  # also from the first byte of any frame to its last, and longer for long frames:
    frame_bytes_per_second_min: int = 64 << 10  # a slow line may need a minute for the longest message
    unattached_idle_timeout: float = 120.0  # of a local peer; an attached client may be silent for ever
    tcp_idle_timeout: float = 120.0  # RocketMQ's: nothing read and nothing written; its clients beat every 30 s
    held_notices_max: int = 1024  # of one connection that does not read
    close_timeout: float = 1.0  # to read the last reply before the connection is cut
    commands_per_turn: int = 32  # of one connection, before the others have theirs
    accepts_per_turn: int = 64
    send_wait_max: float = 0.2  # RocketMQ's waitTimeMillsInSendQueue: from its bytes being read to its turn
    log_lines_per_tick: int = 20
    tick_interval: float = 1.0


DESCRIPTORS_SPARE = 256  # beside the connections: segments, log files, the loop's own
_DESCRIPTORS_MAX = 1 << 17  # more would only be bookkeeping
_PLACES_MIN = 16
_ADDRESSES = 12  # places are shared by so many addresses at least
_ADDRESS_MIN = 64


def limits_of(options: Options) -> BridgeLimits:
    """Return the limits of a bridge of this broker, and let this process have the descriptors they need.

    Raises:
        UsageError: the options ask for more connections than this process may have descriptors.
    """
    sockets = options.bridges + (1 if options.is_name_server else 0)
    local, wanted = options.client_max, options.tcp_connections_max
    needed = wanted * sockets + local + DESCRIPTORS_SPARE if wanted else _DESCRIPTORS_MAX
    descriptors = raise_descriptor_limit(needed)
    if wanted and descriptors < needed:
        raise UsageError(
            f"{wanted} TCP connections need {needed} open files, and a process may have {descriptors} here",
            hint=f"ulimit -n {needed} before the start (as root if it is refused), or a lower --tcp-connections-max",
        )
    left = descriptors - min(local, descriptors // 4) - DESCRIPTORS_SPARE
    places = wanted or max(_PLACES_MIN, left // sockets)
    return replace(
        connection_limits(places, options.address_connections_max),
        connections_max=local,
        more_places="--tcp-connections-max" if wanted else "ulimit -n, or --tcp-connections-max,",
        more_of_address="--address-connections-max",
    )


def connection_limits(places: int, address_max: int = 0) -> BridgeLimits:
    """Return limits with so many places for TCP connections; `address_max` of one address, 0: a share of them."""
    share = min(places, max(_ADDRESS_MIN, places // _ADDRESSES))
    return BridgeLimits(
        tcp_connections_max=places,
        address_connections_max=min(places, address_max) or share,
        loopback_connections_max=min(places, address_max) or max(share, places * 2 // 3),
    )
