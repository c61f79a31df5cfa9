"""Connecting, closing, and the errors of both."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.client.client_id import name_of, new_client_id, pid_of, program_name
from shmq.client.spec import parse_tags
from shmq.message import CONNECTION_NAME_BYTES_MAX
from shmq.properties import is_control
from shmq.shm.liveness import is_alive, signal_proven
from shmq.testing import Broker, SharedBroker
from tests.tables.rows import every_row

Eventually = Callable[..., Any]


def test_without_a_broker_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(shmq.BrokerNotRunning) as caught:
        shmq.connect(f"shmq://{tmp_path}/absent", timeout=0.2)
    assert isinstance(caught.value, ConnectionError)
    assert "shmq serve" in caught.value.hint
    assert caught.value.retryable


def test_who_connects_while_the_broker_starts_its_server_again_waits_for_it(eventually: Eventually) -> None:
    with Broker() as broker:
        supervisor, bridge = broker.processes["supervisor"], broker.processes["bridge"]
        signal_proven(supervisor, signal.SIGSTOP)  # so that the server stays away until we say so
        try:
            signal_proven(bridge)
            eventually(lambda: not is_alive(bridge))
            with pytest.raises(shmq.BrokerNotRunning):
                shmq.connect(broker.url, timeout=0.1)
            seen: list[str] = []

            def connect() -> None:
                with broker.connect(timeout=60.0) as mq:
                    seen.append(mq.url)

            thread = threading.Thread(target=connect)
            thread.start()
            thread.join(0.2)
            assert thread.is_alive() and not seen
        finally:
            signal_proven(supervisor, signal.SIGCONT)
        thread.join(60)
        assert seen == [broker.url]


def test_the_environment_names_the_broker_when_the_caller_does_not(
    shmq_shared_broker: SharedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHMQ_URL", shmq_shared_broker.url)
    with shmq.connect() as mq:
        assert mq.url == shmq_shared_broker.url


def test_a_wrong_url_is_refused() -> None:
    with pytest.raises(shmq.UsageError):
        shmq.connect("redis://localhost")


def test_two_connections_have_two_client_ids(shmq_shared_broker: SharedBroker) -> None:
    with shmq_shared_broker.connect() as one, shmq_shared_broker.connect() as two:
        assert one.client_id != two.client_id
        clients = {entry["clientId"] for entry in one.admin.status()["connections"]}
        assert {one.client_id, two.client_id} <= clients


def test_a_closed_connection_refuses_everything_and_closes_twice(shmq_shared_broker: SharedBroker) -> None:
    mq = shmq_shared_broker.connect()
    producer = mq.producer()
    mq.close()
    mq.close()
    assert mq.closed
    for call in (
        lambda: mq.send("orders", b"x"),
        lambda: producer.send("orders", b"x"),
        lambda: mq.subscribe("orders", group="g"),
        lambda: mq.producer(),
        lambda: mq.admin.topics,
    ):
        with pytest.raises(shmq.UsageError, match="closed"):
            call()


def test_closing_gives_the_client_slot_back(shmq_shared_broker: SharedBroker, eventually: Eventually) -> None:
    mq = shmq_shared_broker.connect()
    client_id = mq.client_id
    mq.close()
    with shmq_shared_broker.connect() as other:
        eventually(lambda: client_id not in {e["clientId"] for e in other.admin.status()["connections"]})


def test_close_returns_although_a_listener_hangs(shmq_shared_broker: SharedBroker) -> None:
    topic, group = shmq_shared_broker.named("orders"), shmq_shared_broker.named("slow")
    entered, leave = threading.Event(), threading.Event()
    mq = shmq_shared_broker.connect()

    @mq.listener(topic, group=group)
    def hang(message: shmq.Message) -> None:
        entered.set()
        leave.wait(30)

    mq.start()
    mq.send(topic, b"x")
    assert entered.wait(60)
    mq.close(timeout=0.1)
    assert not leave.is_set()
    leave.set()


def test_a_dropped_connection_is_reported_and_given_back(
    shmq_shared_broker: SharedBroker, eventually: Eventually
) -> None:
    client_id = ""

    def forget() -> None:
        nonlocal client_id
        mq = shmq_shared_broker.connect()
        client_id = mq.client_id
        mq.send(shmq_shared_broker.named("orders"), b"x")

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget()
        gc.collect()
    with shmq_shared_broker.connect() as other:
        eventually(lambda: client_id not in {e["clientId"] for e in other.admin.status()["connections"]})


def test_a_process_that_forgets_to_close_ends_without_delay_and_stores_what_waited(
    shmq_shared_broker: SharedBroker,
) -> None:
    topic = shmq_shared_broker.named("orders")
    program = (
        "import sys, shmq\n"
        "mq = shmq.connect(sys.argv[1])\n"
        "producer = mq.producer()\n"
        "for number in range(200): producer.send_nowait(sys.argv[2], b'%d' % number)\n"
        "iterator = iter(mq.subscribe(sys.argv[2], group=sys.argv[2]))\n"
        "next(iterator)\n"
    )
    subprocess.run([sys.executable, "-P", "-c", program, shmq_shared_broker.url, topic], check=True, timeout=30)
    with shmq_shared_broker.connect() as mq, mq.pull_consumer(topic) as consumer:
        assert len(consumer.poll(1000, wait=60)) == 200


def test_a_pickled_connection_opens_anew(shmq_shared_broker: SharedBroker) -> None:
    with shmq_shared_broker.connect() as mq, pickle.loads(pickle.dumps(mq)) as copy:
        assert copy.url == mq.url
        assert copy.client_id != mq.client_id
        copy.send(shmq_shared_broker.named("orders"), b"x")


def test_clients_go_on_while_the_daemon_is_dead_and_meet_the_next_one(eventually: Eventually) -> None:
    with Broker() as broker, broker.connect() as mq:
        subscription = mq.subscribe("orders", group="billing")
        mq.send("orders", b"before")
        assert [message.body for message in subscription.receive(wait=60)] == [b"before"]
        broker.kill_daemon()
        mq.send("orders", b"without")
        (without,) = subscription.receive(wait=60)
        assert without.body == b"without"
        broker.restart()
        eventually(lambda: mq.admin.groups["billing"].members == [mq.client_id])
        mq.send("orders", b"after")
        assert [message.body for message in subscription.receive(wait=60)] == [b"after"]
        mq.admin.create_topic("invoices")
        subscription.close()


def sent(sender: shmq.Connection | shmq.Producer, body: bytes) -> bool:
    try:
        sender.send("orders", body)
    except shmq.BrokerNotRunning:
        return False
    return True


def test_after_an_orderly_restart_a_running_iteration_goes_on_in_the_next_generation(eventually: Eventually) -> None:
    with Broker() as broker, broker.connect() as mq:
        bodies: list[bytes] = []
        subscription = mq.subscribe("orders", group="billing")
        producer = mq.producer()

        def consume() -> None:
            for message in subscription:
                bodies.append(message.body)
                message.ack()

        thread = threading.Thread(target=consume)
        thread.start()
        mq.send("orders", b"one")
        eventually(lambda: bodies == [b"one"])
        generation = mq._live().wire.instance.generation
        broker.restart()
        eventually(lambda: mq._live().wire.instance.generation != generation)
        eventually(lambda: sent(mq, b"two"))  # the old generation answers with an error to try again, until it is left
        eventually(lambda: sent(producer, b"three"))  # each producer moves by itself
        eventually(lambda: sorted(bodies[1:]) == [b"three", b"two"])
        subscription.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert mq.admin.groups["billing"].lag.total == 0


def test_sending_into_a_generation_that_was_given_up_is_an_error_to_try_again(eventually: Eventually) -> None:
    with Broker() as broker, broker.connect() as mq:
        mq.send("orders", b"x")
        held = mq.send  # a method that the application copied keeps its generation
        generation = mq._live().wire.instance.generation
        broker.restart()
        eventually(lambda: mq._live().wire.instance.generation != generation)
        with pytest.raises(shmq.BrokerNotRunning) as caught:
            held("orders", b"x")
        assert caught.value.retryable


@every_row(
    ("given", "parsed"),
    [
        (None, ()),
        ("*", ()),
        ("", ()),
        ("fruit", ("fruit",)),
        ("fruit || veg", ("fruit", "veg")),
        ("fruit||veg||fruit", ("fruit", "veg")),
        (["fruit", "veg"], ("fruit", "veg")),
        (["*"], ()),
        (["fruit", "*"], ()),
        (" ", ()),
        ("fruit ||\n\tveg\r\n", ("fruit", "veg")),
        (["fruit\n"], ("fruit",)),
    ],
)
def test_tags_are_one_expression_or_a_list(given: Any, parsed: tuple[str, ...]) -> None:
    assert parse_tags(given) == parsed


@every_row("given", ["fruit ||", "a | b", ["a", ""], [], [""], [" "], ["\t"], "||", ["||"]])
def test_tags_that_select_nothing_are_refused(given: Any) -> None:
    with pytest.raises(shmq.UsageError):
        parse_tags(given)


def test_a_control_character_makes_no_other_tag_of_a_tag_and_not_all_of_them() -> None:
    for control in filter(is_control, map(chr, range(0x100))):
        around = () if control in "\t\r\n" else (control, f"a{control}", f"{control}a", f"{control}*")
        for text in (f"a{control}b", *around):
            for given in (text, [text], f"b || {text}", f" {text} "):
                with pytest.raises(shmq.UsageError):
                    parse_tags(given)


def test_an_idle_consumer_uses_no_processor(shmq_shared_broker: SharedBroker) -> None:
    with shmq_shared_broker.connect() as mq:
        subscription = mq.subscribe(shmq_shared_broker.named("orders"), group=shmq_shared_broker.named("idle"))
        subscription.receive(wait=0.1)
        before = time.thread_time()
        subscription.receive(wait=2.0)
        used = time.thread_time() - before
        assert used < 0.2  # a consumer that spins would have used all of the two seconds


@pytest.mark.parametrize("name", [None, "billing"])
def test_no_two_connections_of_a_host_have_the_same_client_id(name: str | None) -> None:
    assert len({new_client_id(name) for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["billing", "a-b_C%|", "7", "-", "x" * CONNECTION_NAME_BYTES_MAX])
def test_a_name_ends_the_client_id_and_hides_nothing_of_it(name: str) -> None:
    client_id = new_client_id(name)
    assert (name_of(client_id), pid_of(client_id)) == (name, os.getpid())
    assert len(client_id) <= 255


@every_row(
    ("client_id", "pid", "name"),
    [
        ("host@812#1-ff", 812, ""),
        ("host@812#1-ff@billing", 812, "billing"),
        ("10.0.0.7@3341@unit", 3341, "unit"),
        ("10.0.0.7@3341#55@unit@east", 3341, "unit@east"),
        ("10.0.0.7@DEFAULT", 0, ""),
        ("nonsense", 0, ""),
        ("", 0, ""),
    ],
)
def test_ids_of_other_clients_are_read(client_id: str, pid: int, name: str) -> None:
    assert (pid_of(client_id), name_of(client_id)) == (pid, name)


@pytest.mark.parametrize(
    ("started", "name"),
    [
        (["/srv/billing.py"], "billing"),
        (["./billing"], "billing"),
        (["/srv/my orders.v2.py"], "my-orders-v2"),
        (["/srv/orders/__main__.py"], "orders"),
        (["/srv/orders/"], "orders"),
        (["/srv/" + "x" * 100 + ".py"], "x" * CONNECTION_NAME_BYTES_MAX),
        (["/srv/\u8ba2\u5355.py"], ""),
        (["."], ""),
        ([""], ""),
        (["-c"], ""),
        ([], ""),
        ([None], ""),
    ],
)
def test_the_name_of_a_program_is_what_was_started(
    started: list[object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", started)
    assert program_name() == name
    assert name_of(new_client_id()) == name


def test_where_python_is_embedded_without_arguments_a_program_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "argv")
    assert name_of(new_client_id()) == ""


def test_a_script_a_module_and_a_package_have_their_own_names(tmp_path: Path) -> None:
    program = "from shmq.client.client_id import new_client_id\nprint(new_client_id())\n"
    package = tmp_path / "orders"
    package.mkdir()
    for file in ("__main__.py", "nightly.py"):
        (package / file).write_text(program)
    ways = {
        "orders": ["-m", "orders"],
        "nightly": ["-m", "orders.nightly"],
        "": ["-c", program],
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for name, words in ways.items():
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert name_of(done.stdout.strip()) == name
