"""Virtual time: what happens next, in one order that a seed decides.

Whatever a host does is due on its behalf: a killed host's events are dropped, those of a stopped one wait until it
goes on, in the order in which they came.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class Host:
    """A host that can be stopped and killed.

    Attributes:
        life: raised by a kill; what was due in an earlier life does not happen.
    """

    def __init__(self) -> None:
        self.life = 0
        self.is_up = True
        self.is_stopped = False
        self.waiting: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []


class World:
    """The queue of events, and chance."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.chance = random.Random(seed)
        self._queue: list[tuple[int, int, Host | None, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def after(self, ms: int, host: Host | None, do: Callable[..., None], *arguments: Any) -> None:
        """Let something happen later, on behalf of a host's present life."""
        self._number += 1
        life = host.life if host is not None else 0
        heapq.heappush(self._queue, (self.now + ms, self._number, host, life, do, arguments))

    def run(self, until: int) -> None:
        """Let everything happen that is due until then."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, host, life, do, arguments = heapq.heappop(queue)
            if host is None:
                do(*arguments)
            elif host.life == life:
                if host.is_stopped:
                    host.waiting.append((life, do, arguments))
                else:
                    do(*arguments)
        self.now = until

    def resume(self, host: Host) -> None:
        """Let a stopped host go on with what came meanwhile."""
        host.is_stopped = False
        waiting, host.waiting = host.waiting, []
        for life, do, arguments in waiting:
            if host.life == life:
                if host.is_stopped:
                    host.waiting.append((life, do, arguments))
                else:
                    do(*arguments)
