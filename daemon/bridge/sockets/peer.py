"""Asks the kernel which process is at the other end of a Unix socket.

The kernel filled these credentials in when the peer connected, so a client cannot lie about them.
"""

import os
import socket
from struct import Struct

from shmq.daemon.logic.requests import Peer
from shmq.shm.core import process_start

_CREDENTIALS = Struct("iII")  # struct ucred: pid, uid, gid; uid and gid are unsigned


def peer_of(connection: socket.socket) -> Peer:
    """Return the process that connected.

    The pid is translated into our PID namespace by the kernel; 0 means that the process is not visible from here.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return Peer(pid=pid, uid=uid, gid=gid, start=process_start(pid) if pid > 0 else 0, pid_namespace=_namespace_of(pid))


def _namespace_of(pid: int) -> int:
    """Inode of a process' PID namespace; 0 when it is gone, or not ours to look at."""
    if pid <= 0:
        return 0
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0
