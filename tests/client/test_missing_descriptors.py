"""A client's files, sockets and memory are never descriptors 0 to 2 of a program that was started without those.

What such a program prints would go into a file of the log, or to the broker. `without_descriptors.py` is the program;
`low_descriptors.c`, loaded into it, sees also what is open for a moment only, in which another thread may print.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.testing import Broker
from tests.client.without_descriptors import SETS
from tests.ports import free_ports

CLOSED = ("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh")


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that notes low descriptors."""
    library = tmp_path_factory.mktemp("watch") / "low.so"
    source = Path(__file__).with_name("low_descriptors.c")
    command = [os.environ.get("CC", "cc"), "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", source, "-ldl"]
    subprocess.run([*command, "-o", library], check=True, timeout=120)
    return library


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One whose log goes through many files, and whose ports stay when it is started again."""
    ports = {name: f"127.0.0.1:{free_ports()}" for name in ("listen", "nameserver_listen")}
    with Broker(tcp=True, file_bytes=256 << 10, default_queues=1, **ports) as running:
        yield running


def outcomes(broker: Broker, watch: Path, directory: Path) -> Iterator[dict[str, Any]]:
    """Run the program; yield what each of its children says, and start the broker again when the last one asks."""
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-P", "-m", "tests.client.without_descriptors", broker.url)
    where = (f"rocketmq://{broker.name_server}", str(theirs.fileno()), str(directory))
    environment = {**os.environ, "LD_PRELOAD": str(watch), "SHMQ_OFFSETS_DIR": str(directory / "offsets")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # the interpreter's own files are not meant
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")))
    with subprocess.Popen([*CLOSED, *command, *where], pass_fds=(theirs.fileno(),), env=environment) as program:
        theirs.close()
        with ours, ours.makefile("rb") as lines:
            for line in lines:
                told = json.loads(line)
                if "ready" in told:
                    broker.restart()
                    ours.sendall(b".")
                else:
                    yield told
        assert program.wait(60) == 0


def test_whatever_is_missing_and_printed_no_descriptor_is_ours_and_no_message_suffers(
    broker: Broker, watch: Path, tmp_path: Path
) -> None:
    told = list(outcomes(broker, watch, tmp_path))
    assert [each["missing"] for each in told] == [*map(list, SETS), "embedded", "again"]
    different = [each for each in told if each["wrong"] or each["low"]]
    assert not different, "\n".join(f"without {each['missing']}: {each['low']}\n{each['wrong']}" for each in different)
    with broker.connect() as mq:
        assert {bytes(each.body) for each in mq.browse("again")} == {b"before", b"after", b"child"}
