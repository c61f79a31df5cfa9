"""A log file that is removed under a real broker, or a store that is moved, costs no acknowledged message."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from shmq.errors import ReadOnlyStore
from shmq.shm.core import READ_ONLY_FILES_LOST
from shmq.shm.place import Place
from tests.deadline import eventually
from tests.supervisor.conftest import SMALL

Serve = Callable[..., Any]
Attach = Callable[[Any], Any]


def test_no_acknowledged_message_goes_with_the_log_file_in_use(serve: Serve, attach: Attach, broker_name: str) -> None:
    served = serve()
    client = attach(served)
    acknowledged = sum(client.send(bytes(900)) >= 0 for _ in range(400))  # into the second file
    end = client.store.log_end
    (served.store_path / "commitlog" / f"{end - end % SMALL['file_bytes']:020d}").unlink()

    def is_refused() -> bool:
        nonlocal acknowledged
        try:
            client.send(b"x")
        except ReadOnlyStore:
            return True
        acknowledged += 1
        return False

    eventually(is_refused)
    eventually(lambda: client.store.read_only == READ_ONLY_FILES_LOST)  # a flush may have found it first
    url = Place(broker_name, served.runtime).url
    health = subprocess.run(
        [sys.executable, "-P", "-m", "shmq", "health", "--url", url], capture_output=True, text=True
    )
    assert health.returncode == 2 and "files of the store were removed or replaced" in health.stdout, health.stdout
    client.leave()
    assert served.stop() != 0
    again = serve()
    client = attach(again)
    assert client.sent == acknowledged and client.send(b"x") == acknowledged
    client.leave()


def test_a_store_that_is_moved_while_no_keeper_runs_comes_back_with_what_was_stored_meanwhile(
    serve: Serve, attach: Attach
) -> None:
    served = serve()
    client = attach(served)
    acknowledged = sum(client.send(b"before") >= 0 for _ in range(10))
    os.kill(served.mark("supervisor").pid, signal.SIGSTOP)
    served.kill("keeper")
    beat = client.store.keeper_beat_ns
    for directory in (served.store_path / "commitlog", served.store_path):
        directory.rename(directory.with_name("moved"))
        directory.mkdir()
    acknowledged += sum(client.send(b"meanwhile") >= 0 for _ in range(10))
    os.kill(served.mark("supervisor").pid, signal.SIGCONT)
    eventually(lambda: client.store.keeper_beat_ns != beat)
    acknowledged += sum(client.send(b"after") >= 0 for _ in range(10))
    client.leave()
    assert served.stop() == 0, served.text()
    again = serve()
    client = attach(again)
    assert client.sent == acknowledged
    client.leave()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs to make a mount namespace")
def test_a_client_that_has_another_directory_at_the_path_of_the_store_is_refused(
    serve: Serve, broker_name: str
) -> None:
    """As a container with a volume of its own: it would store in its own files, at positions of the broker's log."""
    served = serve()
    code = (
        "import sys, shmq\n"
        "try: shmq.connect(sys.argv[1])\n"
        "except shmq.ForeignNamespace as error: print(error, '|', error.hint)\n"
    )
    files = served.store_path / "commitlog"
    shell = f'mount -t tmpfs none {served.store_path} && mkdir {files} && exec {sys.executable} -P -c "$0" "$1"'
    command = ["unshare", "--mount", "sh", "-c", shell, code, Place(broker_name, served.runtime).url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr)
    assert f"{files} is another directory here than its log | mount {served.store_path} at" in done.stdout, done
