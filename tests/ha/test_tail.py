"""What an old master alone had: it is kept when that follows, it is what was lost, and it can be sent again."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.ha.pair import assert_equal, send, settled_end
from tests.ha.test_switch import fixed, follow, pause, promote, read, slave_of
from tests.tools.shell import Shell

pytestmark = pytest.mark.slow


def send_each_kind(broker: Broker) -> list[shmq.Receipt]:
    """Messages of every kind that a tail can have; return what was acknowledged on the way."""
    with broker.connect() as mq:
        producer = mq.producer(group="buyers")
        sent = [producer.send("orders", b"%d" % number, key=f"k{number}", tag="t") for number in range(100, 110)]
        sent.append(producer.send("orders", b"110", delay_level=1))
        sent.append(producer.send("orders", b"111", delay=3600))
        with producer.transaction("orders", b"112") as transaction:
            pass
        assert transaction.receipt is not None
        sent.append(transaction.receipt)
        producer.transaction("orders", b"114")  # not ended
    with shmq.connect(f"rocketmq://{broker.name_server}") as tcp:
        tcp.send("orders", b"113" + b" " * 20_000)  # compressed
    return sent


def exported(broker: Broker, file: Path) -> list[dict[str, Any]]:
    words = ("store", "export", str(broker.store), "--tail", "--output", str(file))
    document = Shell().json("store-export", *words)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert document["messages"] == len(lines)
    return lines


def body_of(record: dict[str, Any]) -> bytes:
    return base64.b64decode(record["body_base64"]).rstrip()


def test_what_asynchronous_replication_lost_is_the_kept_tail_and_is_sent_again(tmp_path: Path) -> None:
    with Broker(**fixed()) as old, slave_of(old) as new:
        send(old, range(20))
        end = settled_end(old, new)
        pause(old)
        sent = send_each_kind(old)
        old.kill_daemon()
        assert promote(new)["log_end"] == end
        send(new, range(20, 30))
        follow(old, new)
        assert_equal(new, old)
        lines = exported(old, tmp_path / "tail.jsonl")
        positions = {line["position"] for line in lines}
        assert {receipt.log_position for receipt in sent} <= positions
        assert min(positions) == end and all(line["record_crc"] == "right" for line in lines)
        plain = [body_of(line) for line in lines if line["topic"] == "orders" and line["sys_flag"] == 0]
        assert plain == [b"%d" % number for number in range(100, 110)]
        assert read(new, 30, "before") == list(range(30)), "they are lost there"
        again = ("store", "resend", str(tmp_path / "tail.jsonl"))
        shell = Shell(new.url)
        assert shell.run(*again).status == 64
        assert read(new, 30, "told-only") == list(range(30))
        document = shell.json("store-resend", *again, "--yes")
        assert document["sent"] == 14 and {row["topic"] for row in document["left_out"]} >= {"RMQ_SYS_TRANS_HALF_TOPIC"}
        assert read(new, 43, "after") == [*range(30), *range(100, 111), 112, 113]
        assert len(shell.json("timer-list", "timer", "list", "--topic", "orders")["timers"]) == 1
        assert_equal(new, old)
        assert Shell().run("store", "verify", str(new.store)).status == 0
