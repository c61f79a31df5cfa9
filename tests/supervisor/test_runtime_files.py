"""Other programs take the names of a broker's files in its runtime directory: no part of it waits, or ends for it."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shmq.exit_code import ExitCode
from shmq.shm.liveness import is_alive
from shmq.shm.place import Place
from tests.deadline import eventually
from tests.tables.rows import every_row
from tests.tools.shell import Shell

Serve = Callable[..., Any]
Attach = Callable[[Any], Any]
KEPT = ("instance.json", "tcp.json", "metrics.json", "ha.json")
SOCKETS = ("control.sock", "switch.sock")
FILES = (*KEPT, "links.json", "roster.json")
ADDRESSES: dict[str, Any] = {
    "tcp": True,
    "listen": "127.0.0.1:0",
    "nameserver_listen": "127.0.0.1:0",
    "metrics": "127.0.0.1:0",
    "ha_listen": "127.0.0.1:0",
}


def put_a_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a symbolic link": put_a_link,
}


def put_in_its_place(path: Path, kind: str) -> None:
    """Replace a file that a broker may write again at any moment."""
    while True:
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            KINDS[kind](path)
            return


def test_children_are_started_again_and_the_broker_stops_in_order_whatever_has_the_names(
    serve: Serve, broker_name: str
) -> None:
    @every_row("kind", KINDS)
    def each(kind: str) -> None:
        served = serve(log_format="json", **ADDRESSES)
        shell = Shell(Place(broker_name, served.runtime).url)
        eventually(lambda: all((served.runtime / name).is_file() for name in FILES))
        marks = served.instance.processes
        for name in FILES:
            put_in_its_place(served.runtime / name, kind)
        answer = shell.run("health")
        assert f"it is {kind} and no plain file" in answer.out.decode() + answer.err, answer
        for role in ("keeper", "bridge", "exporter", "replication"):
            os.kill(marks[role].pid, signal.SIGKILL)
        if kind == "a directory":  # which goes as the log line says
            eventually(lambda: '"instance.not_written"' in served.text())
            for name in FILES:
                (served.runtime / name).rmdir()
        eventually(lambda: all((served.runtime / name).is_file() for name in FILES))
        eventually(lambda: all(map(is_alive, served.instance.processes.values())) and shell.run("health").status == 0)
        assert {role: mark == marks[role] for role, mark in served.instance.processes.items()} == {
            role: role == "supervisor" for role in marks
        }
        assert served.stop() == 0 and "segments.given_up" not in served.text(), served.text()

    each()


def test_a_runtime_directory_that_is_removed_ends_no_broker(serve: Serve, attach: Attach) -> None:
    served = serve()
    client = attach(served)
    client.send(b"before")
    mark = served.mark("keeper")
    served.runtime.rename(served.runtime.with_name("moved"))
    os.kill(mark.pid, signal.SIGKILL)
    eventually(lambda: "instance.not_written" in served.text())
    beat = client.store.keeper_beat_ns
    served.runtime.mkdir(mode=0o700)
    eventually(lambda: client.store.keeper_beat_ns != beat)
    assert client.send(b"after") == 1
    served.runtime.rename(served.runtime.with_name("moved again"))
    client.leave()
    assert served.stop() == 0, served.text()


def test_what_is_removed_comes_again_for_new_programs_while_no_process_is_started(serve: Serve, attach: Attach) -> None:
    served = serve(log_format="json", **ADDRESSES)
    paths = [served.runtime / name for name in KEPT]
    sockets = [served.runtime / name for name in SOCKETS]
    before = {path: path.read_text() for path in paths}
    first = attach(served)
    for round_number in (1, 2):
        for path in (*paths, *sockets):
            path.unlink()
        eventually(lambda: all(path.exists() and path.read_text() == before[path] for path in paths))
        eventually(lambda: all(path.is_socket() for path in sockets))
        client = attach(served)
        client.send(b"x")
        assert client.sent == round_number
        client.leave()
    first.send(b"x")
    first.leave()
    text = served.text()
    assert (text.count('"instance.written_again"'), text.count('"addresses.written_again"')) == (2, 2 * len(KEPT) - 2)
    os.kill(served.instance.processes["exporter"].pid, signal.SIGTERM)  # it takes its file along, and writes it anew
    eventually(lambda: served.text().count('"exporter.listens"') == 2)
    assert served.stop() == 0
    assert not [path for path in paths if path.exists() and path.name != "instance.json"]


def test_a_start_is_refused_where_the_segments_cannot_be_written_down(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "run" / "instance.json"
    path.parent.mkdir(mode=0o700)
    path.mkdir()
    served = serve()
    assert served.announced["ready"] is False
    assert served.announced["error"] == f"{path} cannot be written: Is a directory"
    assert served.announced["hint"].startswith(f"ls -ld {path.parent} {path}")
    assert served.wait() == ExitCode.CANNOT_CREATE
    path.rmdir()
    assert serve().announced["ready"]
