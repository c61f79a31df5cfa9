"""The broker for tests, and the fixtures that pytest finds by itself."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.errors import BrokerNotRunning
from shmq.testing import START_TIMEOUT, STOP_TIMEOUT, Broker, SharedBroker, _kept_bytecode, _look_timeout, pid_of
from tests.deadline import eventually


def remains_of(name: str) -> list[str]:
    """What a broker of this name left in shared memory."""
    return [entry for entry in os.listdir("/dev/shm") if name in entry]


@pytest.fixture
def listening() -> Iterator[Callable[[Broker], shmq.Connection]]:
    """A service under test: turns orders into invoices."""
    connections: list[shmq.Connection] = []

    def start(broker: Broker) -> shmq.Connection:
        mq = broker.connect()
        connections.append(mq)

        @mq.listener("orders", group="billing")
        def bill(message: shmq.Message) -> None:
            if message.body == b"unknown":
                raise shmq.Reject("unknown article")
            if message.body == b"later" and message.attempt == 1:
                raise shmq.Retry(after=1800)
            mq.send("invoices", message.body, key=message.key)

        mq.start()
        return mq

    yield start
    for mq in connections:
        mq.close()


def test_a_service_is_tested_as_the_documentation_shows(
    shmq_broker: Broker, listening: Callable[[Broker], shmq.Connection]
) -> None:
    listening(shmq_broker)
    with shmq_broker.connect() as mq:
        mq.send("orders", b"3", key="o-1")
        out = shmq_broker.expect("invoices", n=1, timeout=60)
        assert out[0].key == "o-1"
        mq.send("orders", b"later", key="o-2")
        mq.send("orders", b"4", key="o-3")
        assert shmq_broker.expect("invoices", timeout=60)[0].key == "o-3"
        eventually(lambda: mq.admin.groups["billing"].lag.total == 0, "what comes later was given back")
        shmq_broker.advance(seconds=1800)
        assert shmq_broker.expect("invoices", timeout=60)[0].key == "o-2"
        assert shmq_broker.dlq("billing") == []
        mq.send("orders", b"unknown")
        mq.send("orders", b"5")
        shmq_broker.expect("invoices", timeout=60)
        assert [letter.reason for letter in shmq_broker.dlq("billing", n=1, timeout=60)] == ["unknown article"]


def test_a_broker_that_ends_at_once_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho last words\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(BrokerNotRunning, match=r"it ended with status 7\nlast words"), Broker():
        pass


def test_dead_letters_are_waited_for_and_what_came_is_named(shmq_broker: Broker) -> None:
    with pytest.raises(AssertionError, match=r'2 dead letters expected of "billing" within 0.05 s, 0 came: \[\]'):
        shmq_broker.dlq("billing", n=2, timeout=0.05)


def test_expect_returns_each_message_once_and_fails_with_what_came(shmq_broker: Broker) -> None:
    with pytest.raises(AssertionError, match="0 came"):
        shmq_broker.expect("orders", timeout=0.05)
    with shmq_broker.connect() as mq:
        mq.send_batch("orders", [b"a", b"b", b"c"])
        assert [message.body for message in shmq_broker.expect("orders", n=2, timeout=60)] == [b"a", b"b"]
        with pytest.raises(AssertionError, match=r"1 came.*b'c'"):
            shmq_broker.expect("orders", n=2, timeout=0.05)
        mq.send("orders", b"d")
        assert [message.body for message in shmq_broker.expect("orders", timeout=60)] == [b"d"]


def test_a_broker_leaves_nothing_behind() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            mq.send("orders", b"x")
        assert remains_of(broker.name)
        processes = broker.processes
        assert set(processes) == {"supervisor", "keeper", "bridge"}
    assert remains_of(broker.name) == []
    assert not broker.directory.exists()
    assert broker.processes == {}
    broker.stop()


def test_a_broker_whose_daemon_was_killed_leaves_nothing_behind_either() -> None:
    with Broker() as broker, broker.connect() as mq:
        mq.send("orders", b"x")
        broker.kill_daemon()
        mq.send("orders", b"y")
    assert remains_of(broker.name) == []
    assert not broker.directory.exists()


def test_what_was_stored_is_there_after_a_restart() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            mq.send("orders", b"x")
        for harm in (broker.kill_daemon, lambda: None):
            harm()
            broker.restart()
            with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
                assert [message.body for message in consumer.poll(wait=60)] == [b"x"]


def test_killing_a_consumer_of_this_process_gives_nothing_back_in_order(
    shmq_broker: Broker, listening: Callable[[Broker], shmq.Connection]
) -> None:
    mq = listening(shmq_broker)
    assert shmq_broker.kill_consumer("billing") == [mq.client_id]
    assert mq.closed
    with shmq_broker.connect() as other, other.subscribe("orders", group="billing") as subscription:
        other.send("orders", b"x")
        assert [message.body for message in subscription.receive(wait=60)] == [b"x"]


def test_killing_a_consumer_kills_its_process(shmq_broker: Broker) -> None:
    program = (
        "import sys, shmq\n"
        "mq = shmq.connect(sys.argv[1])\n"
        "subscription = mq.subscribe('orders', group='billing')\n"
        "print('in', flush=True)\n"
        "for message in subscription: pass\n"
    )
    with subprocess.Popen([sys.executable, "-P", "-c", program, shmq_broker.url], stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"in\n"
        (member,) = shmq_broker.kill_consumer("billing")
        assert pid_of(member) == victim.pid
        assert victim.wait(60) == -9


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(shmq.BrokerNotRunning, match="file_bytes"), Broker(file_bytes=17):
        pass


def test_settings_are_those_of_the_daemon(shmq_broker_factory: Callable[..., Broker]) -> None:
    one = shmq_broker_factory(auto_create=False)
    two = shmq_broker_factory(default_queues=3, segments="sysv")
    with one.connect() as mq, pytest.raises(shmq.TopicNotFound):
        mq.send("orders", b"x")
    with two.connect() as mq:
        mq.send("orders", b"x")
        assert mq.admin.topics["orders"].read_queues == 3


def test_tests_that_share_a_broker_have_names_of_their_own(shmq_shared_broker: SharedBroker) -> None:
    assert shmq_shared_broker.named("orders") == f"orders-{shmq_shared_broker.namespace}"
    with shmq_shared_broker.connect() as mq:
        mq.send(shmq_shared_broker.named("orders"), b"x")
    assert shmq_shared_broker.expect(shmq_shared_broker.named("orders"), timeout=60)[0].body == b"x"
    assert shmq_shared_broker.dlq(shmq_shared_broker.named("billing")) == []
    with pytest.raises(AssertionError, match="1 dead letters expected"):
        shmq_shared_broker.dlq(shmq_shared_broker.named("billing"), n=1, timeout=0.05)


@pytest.mark.slow
def test_pytest_finds_the_fixtures_without_configuration(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(
        "def test_one(shmq_broker):\n"
        "    with shmq_broker.connect() as mq:\n"
        "        mq.send('orders', b'x')\n"
        "    assert shmq_broker.expect('orders', timeout=60)[0].body == b'x'\n"
        "def test_two(shmq_broker_factory, shmq_shared_broker):\n"
        "    assert shmq_broker_factory().url != shmq_shared_broker.url\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    ("client_id", "pid"),
    [("host@812#1-ff", 812), ("10.0.0.7@3341", 3341), ("10.0.0.7@3341@unit", 3341), ("nonsense", 0), ("host@x#1", 0)],
)
def test_the_pid_is_read_from_a_client_id(client_id: str, pid: Any) -> None:
    assert pid_of(client_id) == pid


def test_advance_delivers_what_waits_for_its_time(shmq_broker: Broker) -> None:
    with shmq_broker.connect() as mq:
        mq.send("orders", b"half an hour", delay=1800)
        mq.send("orders", b"an hour", delay=3600)
        shmq_broker.advance(seconds=1800)
        assert shmq_broker.expect("orders", timeout=60)[0].body == b"half an hour"
        shmq_broker.advance(seconds=1800)
        assert shmq_broker.expect("orders", timeout=60)[0].body == b"an hour"


def test_a_frozen_clock_stands_in_every_process_until_it_is_advanced(
    shmq_broker_factory: Callable[..., Broker],
) -> None:
    broker = shmq_broker_factory(clock="frozen", clock_ms=1_800_000_000_000)
    with broker.connect() as mq:
        assert mq.send("orders", b"now").store_ms == 1_800_000_000_000
        mq.send("orders", b"level 3", delay_level=3)
        mq.send("orders", b"soon", delay=60)
        broker.expect("orders", timeout=60)
        with mq.pull_consumer("orders") as consumer:
            consumer.poll(10, wait=60)
            broker.advance(9.999)
            assert consumer.poll(10) == []
            broker.advance(0.001)
            assert [message.store_ms for message in consumer.poll(10)] == [1_800_000_010_000]
            broker.advance(49.999)
            assert consumer.poll(10) == []
            broker.advance(0.002)
            assert [message.body for message in consumer.poll(10)] == [b"soon"]
        assert broker.time() == 1_800_000_060.001
        program = f"import shmq; print(shmq.connect({broker.url!r}).send('orders', b'x').store_ms)"
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert other.stdout.split() == ["1800000060001"], other.stderr


def test_a_frozen_clock_goes_on_where_it_stood_after_kill_and_restart(
    shmq_broker_factory: Callable[..., Broker],
) -> None:
    broker = shmq_broker_factory(clock="frozen")
    broker.advance(3600)
    stood = broker.time()
    broker.kill_daemon()
    broker.start()
    assert broker.time() == stood
    broker.restart()
    assert broker.time() == stood


def test_what_waits_for_a_lease_a_retry_or_a_check_waits_for_the_frozen_clock(
    shmq_broker_factory: Callable[..., Broker],
) -> None:
    broker = shmq_broker_factory(clock="frozen")
    asked: list[bytes] = []
    with broker.connect() as mq:
        mq.transaction_checker("shop")(lambda message: asked.append(message.body) or shmq.COMMIT)
        half = mq.producer(group="shop").transaction("paid", b"half")
        mq.send("orders", b"x")
        with mq.simple_consumer("orders", group="billing", invisible=30) as consumer:
            assert [message.attempt for message in consumer.receive(wait=60)] == [1]
            broker.advance(29.999)
            assert consumer.receive() == []
            broker.advance(0.001)
            assert [message.attempt for message in consumer.receive(wait=60)] == [2]
        assert broker.expect("paid", timeout=60)[0].body == b"half"
        assert asked == [b"half"] and half is not None, "its producer lives, and says nothing"


@pytest.mark.slow
def test_brokers_compile_their_modules_once_where_python_writes_no_byte_code(tmp_path: Path) -> None:
    program = """if True:
        import os, sys, shmq.testing
        from importlib.util import cache_from_source
        from shmq.daemon import supervisor
        from shmq.daemon.bridge import bridge
        from shmq.daemon.keeper import keeper
        def compiled():
            [kept] = [line[20:] for line in open(f"/proc/{mark.pid}/environ").read().split(chr(0))
                      if line.startswith("PYTHONPYCACHEPREFIX=")]
            files = [os.path.join(root, name) for root, _, names in os.walk(kept) for name in names]
            return kept, {(name, os.stat(name).st_ino) for name in files}
        with shmq.testing.Broker() as broker:
            mark = broker.processes["bridge"]
            kept, first = compiled()
        with shmq.testing.Broker() as broker:
            mark = broker.processes["keeper"]
            assert compiled() == (kept, first), "the second broker compiled again"
        sys.pycache_prefix = kept
        for module in supervisor, keeper, bridge:
            assert cache_from_source(module.__file__) in {name for name, _ in first}, module
        print(kept)
    """
    without = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "none")}
    done = subprocess.run([sys.executable, "-c", program], env=without, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != without["PYTHONPYCACHEPREFIX"] and not Path(done.stdout.strip()).exists()


def test_brokers_use_the_byte_code_that_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    _kept_bytecode.cache_clear()
    try:
        assert _kept_bytecode() is None
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
        there = Path(cache_from_source(shmq.testing.__file__))
        there.parent.mkdir(parents=True)
        there.touch()
        _kept_bytecode.cache_clear()
        assert _kept_bytecode() is None
    finally:
        _kept_bytecode.cache_clear()


@pytest.mark.parametrize(
    ("loadavg", "seconds"),
    [("0.10 0.10 0.10 1/300 77\n", 2.0), ("40.00 9.00 3.00 2/300 77\n", 20.0), ("0.10 9.00 3.00 40/300 77\n", 20.0)],
)
def test_a_busy_machine_has_as_much_longer(monkeypatch: pytest.MonkeyPatch, loadavg: str, seconds: float) -> None:
    """The load of the last minute counts, or what is runnable now."""
    monkeypatch.setattr("builtins.open", lambda path: io.StringIO({"/proc/loadavg": loadavg}[path]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert _look_timeout() == seconds


def test_an_end_in_order_has_as_long_as_a_start() -> None:
    """`restart()` fails with TimeoutExpired after it, and both take a multiple of their time on a busy machine."""
    assert STOP_TIMEOUT == START_TIMEOUT >= 120


UNDER_LOAD = """
import shmq
from shmq.testing import Broker


def test_one_of_its_own(shmq_broker):
    with shmq_broker.connect() as mq:
        mq.send("orders", b"1")
        assert shmq_broker.expect("orders")[0].body == b"1"


def test_one_that_is_shared(shmq_shared_broker):
    with shmq_shared_broker.connect() as mq:
        mq.send(shmq_shared_broker.named("orders"), b"2")
        assert shmq_shared_broker.expect(shmq_shared_broker.named("orders"))[0].body == b"2"


def test_a_kill_a_restart_and_a_restart_in_order(shmq_broker):
    with shmq_broker.connect() as mq:
        mq.send("orders", b"3")
    shmq_broker.kill_daemon()
    shmq_broker.restart()
    shmq_broker.restart()
    assert shmq_broker.expect("orders")[0].body == b"3"


def test_what_waits_for_its_time_and_dead_letters(shmq_broker):
    with shmq_broker.connect() as mq:
        @mq.listener("orders", group="billing")
        def bill(message):
            raise shmq.Reject("no")

        mq.start()
        mq.send("orders", b"4", delay=3600)
        shmq_broker.advance(3600)
        assert [letter.reason for letter in shmq_broker.dlq("billing", 1)] == ["no"]
"""


@pytest.mark.slow
def test_it_works_at_load_40(tmp_path: Path) -> None:
    """With its default timeouts, beside forty processes that never sleep."""
    (tmp_path / "test_busy.py").write_text(UNDER_LOAD)
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(40)]
    try:
        command = [sys.executable, "-m", "pytest", "-q", "--durations=0", "-p", "no:cacheprovider", str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=390)
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
