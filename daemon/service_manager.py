"""Reports to a service manager: that the broker is ready, that it stops, and that it is alive.

This is systemd's notification protocol, one datagram a message (sd_notify(3)).

    NOTIFY_SOCKET     path, or @name in the abstract namespace; without it nothing is sent
    WATCHDOG_USEC     the manager kills what is silent for so long; we speak twice in that time
    WATCHDOG_PID      whose business that is, when it is set

Rules: (1) the variables are taken out of the environment: what we start does not speak for us;
(2) a manager that does not listen costs nothing: a datagram that cannot be sent is dropped.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_FEEDS_PER_TIME = 2.0


class ServiceManager:
    """The manager that started this process, if one did.

    Attributes:
        feed_seconds: how often the watchdog wants to be fed; 0 when there is none.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        address, micros, pid = (environment.pop(name, "") for name in _VARIABLES)
        self._socket: socket.socket | None = None
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.feed_seconds = 0.0
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            if micros.isdecimal() and pid in ("", str(os.getpid())):
                self.feed_seconds = int(micros) / 1e6 / _FEEDS_PER_TIME

    def ready(self, status: str) -> None:
        """Say that clients are served."""
        self._say("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Say what people see in `systemctl status`."""
        self._say(f"STATUS={text}")

    def stopping(self) -> None:
        """Say that the end has begun."""
        self._say("STOPPING=1", "STATUS=stopping")

    def feed(self) -> None:
        """Say that the broker is alive."""
        self._say("WATCHDOG=1")

    def close(self) -> None:
        """Say nothing more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, *lines: str) -> None:
        if self._socket is not None:
            text = "\n".join(line.replace("\n", " ") for line in lines)
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(errors="replace"), self._address)
