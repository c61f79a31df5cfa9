"""Where /proc hides the processes of other users (hidepid=2, ProtectProc=invisible), these live all the same."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="mounts another /proc and becomes other users"
)

GROUP: Final = "65530"
MOUNTS: Final = f"""
    mount -t proc -o hidepid=2 proc /proc && echo 'shmq:x:{GROUP}:' > "$0" && mount --bind "$0" /etc/group && echo &&
    read end
"""
# Does what each line of its standard input says, and answers with a line.
PROGRAM: Final = """
import json, subprocess, sys
import shmq
from shmq.shm.liveness import ProcessMark, is_alive, is_seen_alive, mark_of, own_mark, signal_proven
from shmq.testing import Broker
from shmq.figures.processes import state_of

url = sys.argv[1]
broker = mq = None
for line in sys.stdin:
    order, words = json.loads(line)
    answer = None
    if order == "serve":
        broker = Broker(default_queues=4).start()
        answer = broker.url, broker.processes["bridge"]
    elif order == "open":
        mq = shmq.connect(url)
        consumer = mq.subscribe("orders", group="readers", start="first")
        answer = own_mark()
    elif order == "send":
        for number in range(8):
            mq.send("orders", b"%d" % number)
    elif order == "receive":
        found = consumer.receive(max=8, wait=0.05)
        answer = [message.body.decode() for message in found]
        for message in found:
            message.ack()
    elif order == "judge":
        mark = ProcessMark(*words)
        found = mark_of(mark.pid) is not None
        answer = is_alive(mark), is_seen_alive(mark), found, state_of(mark), signal_proven(mark, 0)
    elif order == "shmq":
        command = [sys.executable, "-P", "-m", "shmq.tools", "--url", url, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        answer = done.returncode, done.stdout
    print(json.dumps(answer), flush=True)
for each in (broker, mq):
    each and each.__exit__(None, None, None)
"""


class User:
    """A process of another user in the namespace of a process."""

    def __init__(self, uid: str, beside: int, url: str = "") -> None:
        # The programs may lie where only root may read.
        rights = ["--inh-caps=+dac_override,+dac_read_search", "--ambient-caps=+dac_override,+dac_read_search"]
        who = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups", *rights]
        command = ["nsenter", "--mount", f"--target={beside}", *who, sys.executable, "-P", "-c", PROGRAM, url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, order: str, words: Any = None) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([order, words]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture
def hidden(tmp_path: Path) -> Iterator[int]:
    """A process whose /proc hides others."""
    command = ["unshare", "--mount", "sh", "-c", MOUNTS, str(tmp_path / "group")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    if not process.stdout.readline():
        process.communicate()
        pytest.skip("no rights to mount here")
    yield process.pid
    process.communicate("\n")


def test_processes_of_other_users_that_proc_hides_are_alive(hidden: int) -> None:
    with contextlib.ExitStack() as ends:
        server = User("65534", hidden)
        ends.callback(server.end)
        url, bridge = server("serve")
        first = User("65533", hidden, url)
        ends.callback(first.end)
        member = first("open")
        second = User("65534", hidden, url)
        ends.callback(second.end)
        second("open")
        for judged in (server("judge", member), first("judge", bridge)):
            assert judged == [True, False, False, "hidden", False]
        *seen, state, may_signal = second("judge", bridge)
        assert (seen, may_signal) == ([True, True, True], True) and state in ("sleeping", "running", "disk")

        first("send")
        received: list[str] = []
        while len(received) < 8:
            received += first("receive") + second("receive")
        assert sorted(received) == list("01234567") and not first("receive") + second("receive")

        status, text = first("shmq", ["health"])
        assert status == 0 and "✓ daemon" in text, text
        status, text = first("shmq", ["doctor"])
        assert status == 0 and "[fail]" not in text and " runs " in text, text
        status, text = first("shmq", ["top"])
        assert status == 0 and not {"dead", "hidden"} & set(text.split()), text  # words: an id may have "dead" in it
        status, text = first("shmq", ["stop"])
        assert status == 77 and "belongs to another user" in text
        assert second("shmq", ["stop"])[0] == 0
