"""A broker from start to stop: ready when it says so, whole again when a part is killed, gone without a trace."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import shmq
from shmq.errors import BrokerNotRunning, SegmentFull
from shmq.shm.core import CoreError
from shmq.shm.instance import read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.presence import presence_count
from shmq.testing import Broker
from tests.supervisor.conftest import SMALL
from tests.tools.store.conftest import end_in_order

Serve = Callable[..., Any]
Eventually = Callable[..., Any]
Attach = Callable[[Any], Any]
Left = Callable[[], list[str]]


def test_a_broker_says_that_it_is_ready_when_its_socket_takes_connections(serve: Serve) -> None:
    served = serve()
    assert served.announced["ready"] is True
    assert served.announced["pid"] == served.process.pid
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(served.announced["socket"])
    assert set(served.instance.processes) == {"supervisor", "keeper", "bridge"}
    assert all(is_alive(mark) for mark in served.instance.processes.values())
    assert presence_count(served.instance) == 3


def test_a_clean_stop_leaves_nothing_but_the_store(serve: Serve, attach: Attach, left: Left) -> None:
    served = serve()
    marks = list(served.instance.processes.values())
    assert left()
    attach(served).send(b"x")
    assert served.stop() == 0
    assert left() == []
    assert not any(is_alive(mark) for mark in marks)
    assert not (served.store_path / "abort").exists()
    again = serve()
    assert (again.announced["records"], again.announced["warm"]) == (0, False)
    assert attach(again).sent == 1


def test_readiness_is_reported_on_the_descriptor_that_was_named(serve: Serve, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    served = serve("--ready-fd", str(writing), pass_fds=(writing,))
    os.close(writing)
    with open(reading) as pipe:
        assert json.loads(pipe.readline()) == served.announced
        assert pipe.readline() == ""


def test_a_second_signal_does_not_wait_for_a_child_that_hangs(
    serve: Serve, attach: Attach, left: Left, eventually: Eventually
) -> None:
    served = serve()
    client = attach(served)
    client.send(b"x")
    os.kill(served.mark("keeper").pid, signal.SIGSTOP)
    served.process.terminate()
    eventually(lambda: not is_alive(served.mark("bridge")))
    assert served.stop() == 1
    assert left() == []
    assert client.store.retired
    assert (served.store_path / "abort").exists()
    assert attach(serve()).sent == 1


HURRIED = """
import sys
from shmq.daemon import __main__, supervisor
supervisor._STOP_SECONDS["keeper"] = 1.0
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_what_was_created_is_saved_by_a_stop_that_finds_a_keeper_which_hangs(
    broker_name: str, tmp_path: Path, eventually: Eventually
) -> None:
    settings = {**SMALL, "broker_name": broker_name, "runtime_dir": tmp_path / "run", "store": tmp_path / "store"}
    words = ["serve", "--json", "--options", json.dumps(settings, default=str)]
    with subprocess.Popen([sys.executable, "-P", "-c", HURRIED, *words], stdout=subprocess.PIPE) as process:
        assert process.stdout and json.loads(process.stdout.readline())["ready"]
        with shmq.connect(f"shmq://{tmp_path}/run") as mq:
            instance = read_instance(tmp_path / "run" / "instance.json")
            assert instance is not None
            os.kill(instance.processes["keeper"].pid, signal.SIGSTOP)
            mq.admin.create_topic("orders")
        process.terminate()
        assert process.wait() == 0
    assert "orders" in (tmp_path / "store/config/topics.json").read_text()
    assert not (tmp_path / "store/abort").exists()


def test_what_was_committed_is_saved_by_a_stop_that_finds_the_keeper_dead(eventually: Eventually) -> None:
    with Broker() as broker:
        supervisor, keeper = (broker.processes[role].pid for role in ("supervisor", "keeper"))
        with broker.connect() as mq, mq.pull_consumer("orders", group="billing") as consumer:
            mq.send("orders", b"x", queue_id=0)
            os.kill(supervisor, signal.SIGSTOP)
            os.kill(keeper, signal.SIGKILL)
            eventually(lambda: psutil.Process(keeper).status() == psutil.STATUS_ZOMBIE)
            consumer.commit(offsets={0: 1})
        os.kill(supervisor, signal.SIGCONT)
        end_in_order(broker)
        broker.kill_daemon()
        broker.start()
        with broker.connect() as mq, mq.pull_consumer("orders", group="billing") as consumer:
            assert consumer.committed()[0] == 1


def test_the_keys_of_the_terminal_are_a_clean_stop(serve: Serve, attach: Attach, left: Left) -> None:
    for number, key in enumerate((signal.SIGINT, signal.SIGQUIT)):
        served = serve()
        client = attach(served)
        client.send(b"x")
        assert client.sent == number + 1
        client.leave()
        served.process.send_signal(key)
        assert served.wait() == 0
        assert left() == []


def test_signals_without_a_meaning_end_no_process_of_a_broker(serve: Serve, attach: Attach) -> None:
    unused = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO)
    addresses = dict.fromkeys(("listen", "nameserver_listen", "metrics"), "127.0.0.1:0")
    served = serve(tcp=True, bridges=2, **addresses)
    marks = served.instance.processes
    assert len(marks) == 5
    for mark in marks.values():
        for number in unused:
            os.kill(mark.pid, number)
    attach(served).send(b"x")
    assert served.stop() == 0
    assert "child.ended" not in served.text()


def test_the_end_of_the_terminal_is_a_clean_stop_however_often_it_is_signalled(serve: Serve, left: Left) -> None:
    served = serve()
    for _ in range(3):  # the kernel tells it, and the shell
        served.process.send_signal(signal.SIGHUP)
    assert served.wait() == 0
    assert left() == []


def test_a_broker_that_is_to_outlive_its_terminal_does(serve: Serve, attach: Attach) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        served = serve()
    finally:
        signal.signal(signal.SIGHUP, before)
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    [ignored] = re.findall(r"^SigIgn:\t(\w+)$", status, re.M)
    assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)
    served.process.send_signal(signal.SIGHUP)
    attach(served).send(b"x")
    assert served.stop() == 0


def test_an_attached_client_learns_that_the_broker_stopped(serve: Serve, attach: Attach) -> None:
    served = serve()
    client = attach(served)
    client.send(b"x")
    assert served.stop() == 0
    assert client.store.retired
    with pytest.raises(CoreError) as caught:
        client.send(b"y")
    assert isinstance(caught.value, BrokerNotRunning)


@pytest.mark.parametrize("role", ["keeper", "bridge"])
def test_a_child_that_is_killed_is_started_again_and_clients_go_on(
    serve: Serve, attach: Attach, eventually: Eventually, role: str
) -> None:
    served = serve()
    client = attach(served)
    generation = served.instance.generation
    for round_number in range(3):
        client.send(b"before")
        before = served.kill(role)
        client.send(b"meanwhile")
        eventually(lambda before=before: served.mark(role) != before and is_alive(served.mark(role)))
        assert client.sent == 2 * (round_number + 1)
    assert served.instance.generation == generation
    assert not client.store.retired
    eventually(lambda: client.store.durable_end == client.store.log_end)
    assert served.stop() == 0


def test_the_bridge_takes_connections_again_after_it_was_killed(serve: Serve, eventually: Eventually) -> None:
    served = serve()
    served.kill("bridge")

    def connected() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(served.runtime / "control.sock")) == 0

    eventually(connected)


def test_children_of_a_killed_supervisor_leave_and_clients_go_on(
    serve: Serve, attach: Attach, eventually: Eventually
) -> None:
    served = serve()
    client = attach(served)
    client.send(b"before")
    children = [served.mark("keeper"), served.mark("bridge")]
    served.kill("supervisor")
    eventually(lambda: not any(is_alive(mark) for mark in children))
    client.send(b"without any process of the broker")
    assert not client.store.retired
    again = serve()
    assert again.announced["warm"] is True
    assert again.instance.generation == int(served.announced["generation"], 16)
    client.send(b"after")
    assert client.sent == 3
    assert again.stop() == 0


def test_all_processes_killed_at_once_are_followed_by_a_broker_that_goes_on(
    serve: Serve, attach: Attach, eventually: Eventually
) -> None:
    served = serve()
    client = attach(served)
    for number in range(50):
        client.send(b"%d" % number)
    for role in ("keeper", "bridge", "supervisor"):
        os.kill(served.mark(role).pid, signal.SIGKILL)
    served.process.wait()
    client.send(b"meanwhile")
    again = serve()
    assert again.announced["warm"] is True
    client.send(b"after")
    queue = client.store.queue_index(client.store.topic_find("orders"), 0)
    eventually(lambda: client.store.queue(queue)[2] == 52)
    assert again.stop() == 0


def test_a_crash_with_loss_of_memory_loses_no_message(serve: Serve, attach: Attach, eventually: Eventually) -> None:
    served = serve()
    client = attach(served)
    for number in range(50):
        client.send(b"%d" % number)
    for role in ("keeper", "bridge", "supervisor"):
        served.kill(role)
    client.leave()
    for name in os.listdir("/dev/shm"):
        if served.instance.broker_name in name:
            os.unlink(f"/dev/shm/{name}")
    again = serve()
    assert again.announced["warm"] is False
    assert attach(again).sent == 50


def test_memory_that_was_removed_by_hand_is_not_replaced_while_a_client_may_append(
    serve: Serve, attach: Attach
) -> None:
    served = serve()
    client = attach(served)
    client.send(b"x")
    for role in ("keeper", "bridge", "supervisor"):
        served.kill(role)
    for name in os.listdir("/dev/shm"):
        if served.instance.broker_name in name:
            os.unlink(f"/dev/shm/{name}")
    refused = serve(wait=False)
    answer = refused.announcement()
    assert (answer["kind"], answer["exit"]) == ("SegmentError", 73)
    assert "1 processes are attached" in answer["error"]
    assert refused.wait() == 73
    client.leave()
    assert serve().announced["ready"] is True


def test_a_second_broker_on_the_store_is_refused_and_told_the_pid_of_the_first(
    serve: Serve, tmp_path: Path, broker_name: str
) -> None:
    first = serve()
    second = serve(name=f"{broker_name}-b", runtime=tmp_path / "run-b", wait=False)
    answer = second.announcement()
    assert (answer["ready"], answer["kind"], answer["exit"]) == (False, "StoreLocked", 73)
    assert f"pid {first.process.pid}" in answer["error"]
    assert second.wait() == 73
    assert first.process.poll() is None


def test_a_second_broker_in_the_runtime_directory_is_refused(serve: Serve, tmp_path: Path) -> None:
    first = serve()
    second = serve(store=tmp_path / "other", wait=False)
    answer = second.announcement()
    assert (answer["kind"], answer["exit"]) == ("StoreLocked", 73)
    assert str(first.process.pid) in answer["error"]
    assert second.wait() == 73
    assert is_alive(first.mark("keeper"))
    first.stop()


def test_a_leftover_child_that_is_stopped_does_not_keep_the_store_locked(serve: Serve, attach: Attach) -> None:
    served = serve()
    attach(served).send(b"x")
    os.kill(served.mark("keeper").pid, signal.SIGSTOP)
    served.kill("supervisor")
    again = serve()
    assert attach(again).sent == 1
    assert again.stop() == 0


def test_a_broker_can_use_system_v_segments(serve: Serve, attach: Attach, left: Left, eventually: Eventually) -> None:
    served = serve(segments="sysv")
    client = attach(served)
    client.send(b"x")
    assert served.announced["kind"] == "sysv"
    parts = [name.rpartition(".")[2] for name in left() if name.startswith("shmq.")]
    assert parts == ["counters"]  # a few pages, and the only ones in /dev/shm
    for role in ("keeper", "bridge", "supervisor"):
        served.kill(role)
    again = serve(segments="sysv")
    assert again.announced["warm"] is True
    assert client.send(b"y") == 1
    client.store.close()
    assert again.stop() == 0
    assert left() == []


@pytest.mark.parametrize(
    ("words", "settings", "status"),
    [
        ([], {"file_bytes": 1000}, 78),
        ([], {"default_queues": 0}, 78),
        ([], {"name": "../x"}, 78),
        ([], {"store": "relative"}, 78),
        ([], {"nonsense": 1}, 78),
        ([], {"flush": "sometimes"}, 78),
        (["--options", "nonsense"], {}, 78),
        (["--unknown"], {}, 64),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_made(
    serve: Serve, tmp_path: Path, words: list[str], settings: dict[str, Any], status: int
) -> None:
    assert serve(*words, wait=False, **settings).wait() == status
    assert not (tmp_path / "store").exists()


def test_a_store_of_another_file_size_is_refused_with_the_setting_that_helps(serve: Serve) -> None:
    serve().stop()
    other = serve(file_bytes=512 << 10, wait=False)
    answer = other.announcement()
    assert (answer["exit"], str(256 << 10) in answer["hint"]) == (78, True)
    assert other.wait() == 78


def test_a_damaged_store_is_refused_with_its_reason(serve: Serve, attach: Attach) -> None:
    served = serve()
    attach(served).send(b"x")
    served.stop()
    for path in (served.store_path / "commitlog").iterdir():
        path.unlink()
    other = serve(wait=False)
    answer = other.announcement()
    assert (answer["kind"], answer["exit"]) == ("CorruptionError", 65)
    assert other.wait() == 65


def test_an_idle_broker_needs_less_than_150_mib(serve: Serve) -> None:
    served = serve(file_bytes=64 << 20, populate_bytes=16 << 20)
    processes = [psutil.Process(mark.pid) for mark in served.instance.processes.values()]
    assert sum(process.memory_full_info().pss for process in processes) < 150 << 20


SMALL_SHM = """
    import json, os, subprocess, sys
    os.system("mount -t tmpfs -o size=16m tmpfs /dev/shm")
    root = sys.argv[1]
    settings = {"broker_name": "small", "runtime_dir": root + "/run", "store": root + "/store", "file_bytes": 65536}
    result = subprocess.run([sys.executable, "-P", "-m", "shmq.daemon", "serve", "--options",
                             json.dumps({**settings, "tcp": False})],
                            capture_output=True, text=True)
    print(result.returncode)
    print([line for line in result.stderr.splitlines() if line.startswith(("error", "  do"))])
    print(os.listdir("/dev/shm"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
def test_a_dev_shm_that_is_too_small_is_refused_with_what_to_type(tmp_path: Path) -> None:
    result = subprocess.run(
        ["unshare", "--mount", "--ipc", sys.executable, "-c", textwrap.dedent(SMALL_SHM), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    status, lines, names = result.stdout.splitlines()
    assert (status, names) == ("73", "[]"), result.stderr
    assert "/dev/shm has" in lines and "of 16.0 MiB" in lines and "[exit 73]" in lines
    assert "docker run --shm-size" in lines


def test_a_start_after_a_stop_frees_the_queues_of_deleted_topics(serve: Serve) -> None:
    """What the error of a full table tells to do."""
    served = serve()

    def fill() -> SegmentFull:
        with shmq.connect(f"shmq://{served.runtime}") as mq:
            mq.admin.create_topic("stays", queues=8)
            with pytest.raises(SegmentFull) as caught:
                for _ in range(1024):
                    mq.admin.create_topic("comes-and-goes", queues=256)
                    mq.admin.delete_topic("comes-and-goes")
            return caught.value

    assert "by topics that were deleted" in str(fill())
    assert served.stop() == 0
    served = serve()
    assert "by topics that were deleted" in str(fill())
    served.stop()
