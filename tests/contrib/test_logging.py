"""The logging handler: what a record becomes, in which order, and that nothing stops the program."""

import json
import logging
import logging.config
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import shmq
from shmq.contrib import logging as shmq_logging
from shmq.contrib.logging import ShmqHandler
from shmq.errors import InvalidName, SendTimeout
from shmq.testing import Broker, SharedBroker
from tests.deadline import eventually

NOWHERE = "shmq:///nonexistent/none"


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("logs")


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    """A logger of this test's own, whose handlers are closed behind it."""
    made = logging.getLogger(f"test.{request.node.name}")
    made.setLevel(logging.DEBUG)
    made.propagate = False
    yield made
    for handler in [each for each in made.handlers if isinstance(each, ShmqHandler)]:
        made.removeHandler(handler)
        handler.close()


def stored(mq: shmq.Connection, topic: str) -> list[dict[str, Any]]:
    return [json.loads(bytes(message.body)) for message in mq.browse(topic, limit=10_000)]


def test_a_record_becomes_a_message(mq: shmq.Connection, topic: str, logger: logging.Logger) -> None:
    handler = ShmqHandler(topic, mq.url, timeout=20.0)
    logger.addHandler(handler)
    logger.warning("disk is %d %% full", 91, extra={"disk": "/var", "free": {1, 2}.__class__})
    try:
        raise KeyError("k")
    except KeyError:
        logger.exception("no such key")
    handler.flush()
    first, second = mq.browse(topic)
    body = json.loads(bytes(first.body))
    assert (body["message"], body["level"], body["disk"]) == ("disk is 91 % full", "WARNING", "/var")
    assert body["file"] == __file__ and body["process"] == os.getpid() and body["time"].endswith("Z")
    assert first.tag == "WARNING" and first.properties["logger"] == logger.name
    assert "KeyError: 'k'" in json.loads(bytes(second.body))["exception"] and second.tag == "ERROR"


def test_a_formatter_makes_the_body_and_any_level_a_tag(
    mq: shmq.Connection, topic: str, logger: logging.Logger
) -> None:
    handler = ShmqHandler(topic, mq.url, level=logging.INFO, timeout=20.0)
    handler.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
    logger.addHandler(handler)
    logger.debug("left out")
    logger.log(35, "odd \u00f6")
    handler.flush()
    (message,) = mq.browse(topic)
    assert (bytes(message.body), message.tag) == (b"Level 35|odd \xc3\xb6", "LEVEL-35")


def test_records_of_many_threads_are_all_stored_each_thread_in_order(
    mq: shmq.Connection, topic: str, logger: logging.Logger
) -> None:
    mq.admin.create_topic(topic, queues=1)
    handler = ShmqHandler(topic, mq.url, timeout=30.0)
    logger.addHandler(handler)

    def log(name: int) -> None:
        for number in range(200):
            logger.info("%d %d", name, number)

    threads = [threading.Thread(target=log, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handler.flush()
    texts = [entry["message"].split() for entry in stored(mq, topic)]
    for name in range(4):
        assert [int(number) for who, number in texts if int(who) == name] == list(range(200))
    assert handler.lost == 0


def test_a_record_that_cannot_be_formatted_is_loggings_affair(
    mq: shmq.Connection, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = ShmqHandler(topic, mq.url, timeout=20.0)  # alone: pytest's own handlers would raise
    for message, number in (("%d", "no number"), ("behind it %d", 1)):
        handler.handle(logging.makeLogRecord({"name": "test", "msg": message, "args": (number,)}))
    handler.close()
    assert "--- Logging error ---" in capsys.readouterr().err
    assert [entry["message"] for entry in stored(mq, topic)] == ["behind it 1"]


def test_without_a_broker_nothing_waits_raises_or_is_printed(
    logger: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = ShmqHandler("logs", NOWHERE, queue_max=3, timeout=0.2)
    logger.addHandler(handler)
    for number in range(10):
        logger.error("%d", number)
    assert handler.lost == 7
    handler.flush()
    handler.close()
    logger.error("behind the end")
    assert handler.lost == 11 and capfd.readouterr() == ("", "")
    with pytest.raises(InvalidName):
        ShmqHandler("no topic")


def test_a_broker_that_comes_later_gets_what_waited_and_the_number_of_lost_lines(logger: logging.Logger) -> None:
    broker = Broker()
    handler = ShmqHandler("logs", broker.url, queue_max=5, timeout=20.0)
    logger.addHandler(handler)
    for number in range(20):
        logger.info("%d", number)
    assert handler.lost == 15
    with broker, broker.connect() as mq:
        eventually(lambda: not handler._worker._waiting, "what waited is stored")
        logger.info("after")
        handler.flush()
        texts = [entry["message"] for entry in stored(mq, "logs")]
    assert [text for text in texts if text.isdecimal()] == ["0", "1", "2", "3", "4"] and texts[-1] == "after"
    assert [text for text in texts if "were lost here" in text] == ["15 log records were lost here"]


def test_what_is_logged_while_a_broker_is_dead_is_stored_in_order_or_counted(logger: logging.Logger) -> None:
    """How much is which depends on when: the log takes messages without its daemon."""
    with Broker() as broker:
        handler = ShmqHandler("logs", broker.url, queue_max=5, timeout=20.0)
        logger.addHandler(handler)
        logger.info("before")
        handler.flush()
        broker.kill_daemon()
        for number in range(20):
            logger.info("%d", number)
        broker.start()
        eventually(lambda: not handler._worker._waiting, "what waited is stored")
        logger.info("after")
        handler.flush()
        with broker.connect() as mq:
            texts = [entry["message"] for entry in stored(mq, "logs")]
    numbers, lost = [int(text) for text in texts if text.isdecimal()], handler.lost
    assert texts[0] == "before" and texts[-1] == "after"
    assert numbers == sorted(set(numbers)) and len(numbers) + lost == 20
    assert sum(int(text.split()[0]) for text in texts if "were lost here" in text) == lost


def test_a_record_that_is_stored_and_not_on_the_disk_in_time_is_stored_once(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    bodies: list[str] = []

    class SlowDisk:
        def send(self, _topic: str, body: bytes, **_: object) -> None:
            bodies.append(json.loads(body)["message"])
            raise SendTimeout("not on the disk in time")

        def close(self, _timeout: float) -> None:
            """Nothing to do."""

    monkeypatch.setattr(shmq_logging, "connect", lambda *_, **__: SlowDisk())
    handler = ShmqHandler("logs", queue_max=1)
    logger.addHandler(handler)
    logger.warning("first")
    handler.flush()
    handler._worker.lost += 1
    logger.warning("second")
    handler.flush()
    assert bodies == ["first", "1 log records were lost here", "second"]


def test_records_of_shmq_itself_make_no_circle(mq: shmq.Connection, topic: str) -> None:
    handler = ShmqHandler(topic, mq.url, timeout=20.0)
    logging.getLogger("shmq").addHandler(handler)
    try:
        logging.getLogger("shmq").error("about the broker")
        logging.getLogger("shmq.spark").error("about Spark")
    finally:
        logging.getLogger("shmq").removeHandler(handler)
        handler.close()
    assert topic not in mq.admin.topics


def test_a_forked_child_has_a_thread_and_a_connection_of_its_own(
    mq: shmq.Connection, topic: str, logger: logging.Logger
) -> None:
    handler = ShmqHandler(topic, mq.url, timeout=20.0)
    logger.addHandler(handler)
    logger.info("parent")
    handler.flush()
    child = os.fork()
    if child == 0:
        logger.info("child")
        handler.flush()
        os._exit(handler.lost)
    assert os.waitpid(child, 0)[1] == 0
    logger.info("parent again")
    handler.flush()
    assert [entry["message"] for entry in stored(mq, topic)] == ["parent", "child", "parent again"]
    assert stored(mq, topic)[1]["process"] == child


def test_the_end_of_a_program_stores_what_waits(mq: shmq.Connection, topic: str) -> None:
    settings = {
        "version": 1,
        "handlers": {"mq": {"class": "shmq.contrib.logging.ShmqHandler", "topic": topic, "url": mq.url, "timeout": 20}},
        "root": {"handlers": ["mq"], "level": "INFO"},
    }
    program = f"import logging, logging.config\nlogging.config.dictConfig({settings!r})\n"
    program += "for number in range(100): logging.info('%d', number)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(int(entry["message"]) for entry in stored(mq, topic)) == list(range(100))


def test_a_connection_that_is_made_while_the_handler_is_closed_is_closed(
    topic: str, monkeypatch: pytest.MonkeyPatch, shmq_shared_broker: SharedBroker
) -> None:
    worker = shmq_logging._Worker(topic, shmq_shared_broker.url, queue_max=10, timeout=2.0)
    made: list[shmq.Connection] = []

    def connect(*arguments: Any, **named: Any) -> shmq.Connection:
        worker.close()
        made.append(shmq.connect(*arguments, **named))
        return made[0]

    monkeypatch.setattr(shmq_logging, "connect", connect)
    worker._waiting.append(shmq_logging.Entry(b"x", "INFO", {}))
    worker._run()
    assert made[0].closed
