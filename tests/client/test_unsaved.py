"""What is created while the store keeper hangs is there, said not to be saved yet, and survives its processes."""

import logging
import os
import signal
from typing import Any

import pytest

import shmq
from shmq.protocol.codes import NOT_SAVED_YET
from shmq.testing import Broker
from tests.deadline import eventually
from tests.tools.shell import Shell


def test_every_door_says_that_a_change_is_not_saved_yet(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tcp=True) as broker:
        before = broker.processes
        os.kill(before["keeper"].pid, signal.SIGSTOP)
        made: list[str] = []

        def is_said_of_another(connection: Any) -> bool:
            made.append(f"topic-{len(made)}")
            connection.admin.create_topic(made[-1])
            return any(line.startswith(NOT_SAVED_YET) for line in caplog.messages)

        with caplog.at_level(logging.WARNING, "shmq"):
            for url in (broker.url, f"rocketmq://{broker.name_server}"):
                caplog.clear()
                with shmq.connect(url) as mq:
                    eventually(lambda mq=mq: is_said_of_another(mq), pause=0.2)
        for url in (broker.url, f"rocketmq://{broker.name_server}"):
            made.append(f"command-{len(made)}")
            created = Shell(url).run("topic", "create", made[-1])
            assert created.status == 0 and NOT_SAVED_YET in created.err, created
        for role in ("keeper", "bridge"):
            os.kill(before[role].pid, signal.SIGKILL)
        eventually(lambda: {*before} <= {*broker.processes} and broker.processes["bridge"] != before["bridge"])
        with broker.connect() as mq:
            assert {*made} <= {*mq.admin.topics}
