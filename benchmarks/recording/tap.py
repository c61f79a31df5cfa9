"""A proxy that keeps every frame between a stock client and a stock server.

Owns the sockets. It does not know what a frame means, except that a route names the broker: the name is replaced on its
way to the client by an address of the tap, of the same length, so that the client's next connection comes through here
too. What is kept is what the server wrote.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import NamedTuple

_CHUNK = 1 << 16


class Seen(NamedTuple):
    """One frame; `server` is "namesrv" or "broker"."""

    server: str
    connection: int
    to_server: bool
    data: bytes


class Tap:
    """Listens for a name server and a broker."""

    def __init__(self, name_server: str, broker: str) -> None:
        self.seen: list[Seen] = []
        self._broker = broker.encode()
        self._connections = 0
        self._sockets: list[socket.socket] = []
        self.broker_address = self._listen("broker", broker, like=broker)
        self.name_server = self._listen("namesrv", name_server, like="")

    def _listen(self, server: str, target: str, *, like: str) -> str:
        """Listen on a port with as many digits as that of `like`."""
        while True:
            listener = socket.create_server(("127.0.0.1", 0))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            if not like or len(address) == len(like):
                break
            listener.close()
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(server, target, listener), daemon=True).start()
        return address

    def _accept(self, server: str, target: str, listener: socket.socket) -> None:
        host, port = target.rsplit(":", 1)
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)))
                self._sockets += [near, far]
                self._connections += 1
                for source, sink, to_server in ((near, far, True), (far, near, False)):
                    pump = (server, self._connections, source, sink, to_server)
                    threading.Thread(target=self._pump, args=pump, daemon=True).start()

    def _pump(self, server: str, number: int, source: socket.socket, sink: socket.socket, to_server: bool) -> None:
        pending = b""
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                pending += data
                while len(pending) >= 4 and len(pending) >= 4 + (size := struct.unpack_from(">i", pending)[0]):
                    frame, pending = pending[: 4 + size], pending[4 + size :]
                    self.seen.append(Seen(server, number, to_server, frame))
                    if not to_server:
                        frame = frame.replace(self._broker, self.broker_address.encode())
                    sink.sendall(frame)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut everything."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.close()
