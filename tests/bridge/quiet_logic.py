"""A logic that attaches no client and waits for nothing, for tests to fill in."""

from collections.abc import Iterable, Sequence

from shmq.daemon.logic.effects import Effect


class QuietLogic:
    """What a logic may leave out: it attaches no client and waits for nothing."""

    holds_sends = False

    def is_attached(self, connection_id: int) -> bool:
        """No client is attached."""
        return False

    def arrived(self, queues: Sequence[int], now_ms: int) -> Iterable[Effect]:
        """Nothing waits."""
        return ()

    def flushed(self, durable_end: int, now_ms: int) -> Iterable[Effect]:
        """Nothing waits."""
        return ()

    def woken(self, now_ms: int) -> Iterable[Effect]:
        """Drop it: nothing asked for it."""
        return ()
