"""A process that is forked while another of its threads is at work."""

import os
import threading

import pytest

from shmq import typed_json
from shmq.shm import presence


@pytest.mark.parametrize("lock", [presence._lock, typed_json._describing], ids=["presence", "description of a type"])
def test_no_lock_is_held_in_a_child_by_a_thread_that_it_does_not_have(lock: threading.RLock) -> None:
    is_held, is_forked = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            is_forked.wait()

    os.register_at_fork(before=is_forked.set)
    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
