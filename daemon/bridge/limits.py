"""What one connection, and all of them together, may cost the bridge.

`connection.py`, `bridge.py` and `sockets/reception.py` enforce these numbers.
"""

from dataclasses import dataclass

from shmq.protocol.frame import FRAME_BYTES_MAX, STOCK_FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class BridgeLimits:
    """Bounds of the bridge; times in seconds."""

    connections_max: int = 1024  # of processes of this host, over the control socket; TCP takes none of these
    tcp_connections_max: int = 768
    address_connections_max: int = 64  # of one remote address
    loopback_connections_max: int = 512  # all programs of this host share one address
    refused_connections_max: int = 64  # over one of these limits, but told so: their first request is answered
    idle_kept: float = 1.0  # whoever is silent for longer, and nobody knows, makes room for others at a limit
    frame_bytes_max: int = FRAME_BYTES_MAX
    skipped_bytes_max: int = STOCK_FRAME_BYTES_MAX  # a send over TCP up to that is dropped, but answered
    frame_bytes_max_unattached: int = 1 << 20  # a heartbeat fits; whoever wants more says who he is first
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
