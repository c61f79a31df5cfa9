"""Many threads wait for replies, one of them reads: every wait ends, by its reply or by its deadline."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from shmq.client.requests.requester import Waiting, WaitingRequests
from shmq.errors import RequestTimeout, StoreError, UsageError

Eventually = Callable[..., Any]


class Replies:
    """A source of replies that counts who reads it at once."""

    def __init__(self) -> None:
        self.coming: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.readers = self.readers_most = 0
        self.error: Exception | None = None
        self.requests = WaitingRequests(self.poll)

    def poll(self, seconds: float) -> list[tuple[str, Any]]:
        self.readers += 1
        self.readers_most = max(self.readers, self.readers_most)
        try:
            if self.error is not None:
                raise self.error
            return [self.coming.get(timeout=seconds)]
        except queue.Empty:
            return []
        finally:
            self.readers -= 1

    def ask(self, name: str, timeout: float = 20.0, future: Future[Any] | None = None) -> Waiting:
        waiting = Waiting(name, "prices", timeout, future)
        self.requests.add(waiting)
        return waiting


@pytest.fixture
def replies() -> Replies:
    return Replies()


def test_the_reading_thread_hands_the_others_their_replies_and_the_reading_on(replies: Replies) -> None:
    got: dict[str, Any] = {}

    def wait(waiting: Waiting) -> None:
        got[waiting.correlation_id] = replies.requests.wait(waiting)
        replies.requests.drop(waiting)

    names = [str(number) for number in range(8)]
    threads = [threading.Thread(target=wait, args=(replies.ask(name),)) for name in names]
    for thread in threads:
        thread.start()
    for name in reversed(names):
        replies.coming.put((name, f"re:{name}"))
    for thread in threads:
        thread.join(60)
    assert got == {name: f"re:{name}" for name in names}
    assert replies.readers_most == 1 and replies.requests.is_empty


def test_a_wait_whose_reader_is_closed_under_it_says_that_the_connection_was_closed() -> None:
    def poll(_seconds: float) -> list[tuple[str, Any]]:
        requests.close()
        raise UsageError("the reader is closed")

    requests = WaitingRequests(poll)
    waiting = Waiting("a", "prices", 20.0, None)
    requests.add(waiting)
    with pytest.raises(UsageError, match="the connection was closed before the reply came") as closed:
        requests.wait(waiting)
    assert closed.value.hint


def test_a_wait_ends_at_its_deadline_with_nothing(replies: Replies) -> None:
    waiting = replies.ask("a", timeout=0.01)
    assert replies.requests.wait(waiting) is None
    assert 'topic "prices" within 0.01 s' in str(waiting.timed_out())


def test_replies_without_a_request_and_second_ones_are_dropped(replies: Replies) -> None:
    waiting = replies.ask("a")
    for reply in (("gone", 1), ("a", 2), ("a", 3)):
        replies.coming.put(reply)
    assert replies.requests.wait(waiting) == 2


def test_futures_are_read_for_beside_threads_that_read(replies: Replies) -> None:
    futures: dict[str, Future[Any]] = {name: Future() for name in "abc"}
    for name, future in futures.items():
        replies.ask(name, future=future)
    own = replies.ask("own")
    for name in ("c", "own", "a"):
        replies.coming.put((name, name))
    assert replies.requests.wait(own) == "own"
    replies.requests.drop(own)
    assert (futures["a"].result(60), futures["c"].result(60)) == ("a", "c")
    replies.requests.close()
    with pytest.raises(UsageError):
        futures["b"].result(60)


def test_a_future_ends_at_its_deadline_and_a_cancelled_one_harms_no_other(replies: Replies) -> None:
    late: Future[Any] = Future()
    cancelled: Future[Any] = Future()
    replies.ask("cancelled", future=cancelled)
    assert cancelled.cancel()
    replies.ask("late", timeout=0.02, future=late)
    replies.coming.put(("cancelled", 1))
    with pytest.raises(RequestTimeout):
        late.result(60)
    replies.requests.close()


def test_what_ends_reading_ends_every_wait(replies: Replies, eventually: Eventually) -> None:
    replies.error = StoreError("the segments are gone")
    future: Future[Any] = Future()
    replies.ask("future", future=future)
    with pytest.raises(StoreError):
        future.result(60)
    waiting = replies.ask("thread")
    with pytest.raises(StoreError):
        replies.requests.wait(waiting)
    replies.requests.drop(waiting)
    eventually(lambda: replies.requests.is_empty)


def test_after_close_nothing_can_be_asked(replies: Replies) -> None:
    waiting = replies.ask("a")
    replies.requests.close()
    with pytest.raises(UsageError):
        replies.requests.wait(waiting)
    with pytest.raises(UsageError):
        replies.ask("b")
