"""Keeps the event loop awake for 250 µs while TCP requests come closer together than that.

A loop that sleeps has to be woken: on a virtual machine that takes longer than serving a request. A client that waits
for each answer sends the next request a fraction of a millisecond after it, so for that long the loop looks again
instead of sleeping.

Rules: (1) only while requests come closer together than `GAP_MAX`; (2) never longer than `SPIN` after the last one;
(3) not at all with one processor, where the client could not run meanwhile; (4) not while answers wait for the disk:
those who get them send next, and the disk and they need the processor.
"""

import asyncio
import os
import time

GAP_MAX = 250e-6
SPIN = 250e-6
_SMOOTHING = 8  # requests that the mean gap remembers


class BusyPoll:
    """The busy polling of one loop, from its arrivals. `is_polling`: the loop looks again instead of sleeping."""

    def __init__(self) -> None:
        self._last = 0.0
        self._gap = 2 * GAP_MAX
        self.is_polling = False
        self._is_resting = False
        self._pays = len(os.sched_getaffinity(0)) > 1

    def arrived(self) -> None:
        """Bytes of a request have come."""
        now = time.perf_counter()
        # Cut, so that a pause is forgotten as fast as it should be.
        self._gap += (min(now - self._last, 2 * GAP_MAX) - self._gap) / _SMOOTHING
        self._last = now
        self._is_resting = False
        if self._pays and not self.is_polling and self._gap < GAP_MAX:
            self.is_polling = True
            asyncio.get_running_loop().call_soon(self._turn)

    def rest(self) -> None:
        """Answers are held: sleep until they go, or something comes."""
        self._is_resting = True

    def _turn(self) -> None:
        if not self._is_resting and time.perf_counter() - self._last < SPIN:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.is_polling = False
