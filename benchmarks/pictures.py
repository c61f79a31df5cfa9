"""The pictures of `health`, `top`, `doctor` and `console` in docs/: `python -m benchmarks.pictures [DIRECTORY]`.

A real broker is started in private directories, loaded by producers and consumers in processes of their own, and what
the three commands say about it is written as SVG. Numbers differ from run to run, what is shown does not: two producers
at a steady pace, a group that keeps up, a group whose only member reads slowly, and the memory of a broker that was
killed and whose store is gone. Other brokers of the host are left out. Chromium draws the console, driven by
playwright, after `CONSOLE_SECONDS`, so that its charts have something to show.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.shm.instance import read_instance
from shmq.shm.leftovers import find_leftovers, remove_leftover
from shmq.shm.liveness import is_alive, signal_proven
from shmq.shm.place import place_of
from shmq.tools.doctor.case import open_case
from shmq.tools.doctor.examine import examine
from shmq.tools.doctor.report import report
from shmq.tools.health.examine import all_findings
from shmq.tools.health.report import Report
from shmq.tools.top.rates import picture_of
from shmq.tools.top.view import Choice, page

WIDTH, LINES = 122, 26
BROKERS = ("default", "old")
SETTLE_SECONDS = 3.0
START_SECONDS_MAX = 60.0
CONSOLE_SECONDS = 150.0
_SCREENS = (("console.png", 1280, 860, "light", "/"), ("console-phone.png", 390, 844, "dark", "/topics/orders"))
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.S)  # would be fetched from elsewhere
_COMMAND = [sys.executable, "-m", "shmq"]
_PRODUCER = """
import sys, time
import shmq
topic, rate = sys.argv[1], int(sys.argv[2])
with shmq.connect() as mq:
    while True:
        for number in range(rate // 50):
            mq.send(topic, b"x" * 300, tag="fruit", key=str(number))
        time.sleep(0.02)
"""
_CONSUMER = """
import sys, time
import shmq
topic, group, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])
with shmq.connect() as mq:
    for message in mq.subscribe(topic, group=group):
        time.sleep(pause)
        message.ack()
"""
_LOAD = (
    (_PRODUCER, ("orders", "4000")),
    (_PRODUCER, ("payments", "500")),
    (_CONSUMER, ("orders", "billing", "0")),
    (_CONSUMER, ("orders", "audit", "0.001")),
    (_CONSUMER, ("payments", "ledger", "0")),
)


@contextlib.contextmanager
def _world() -> Iterator[Path]:
    """A broker called default with clients, found through the environment; yields a directory for more of them."""
    with tempfile.TemporaryDirectory(prefix="shmq-") as folder, contextlib.ExitStack() as processes:
        os.environ.update(SHMQ_RUNTIME_DIR=f"{folder}/run", SHMQ_STORE=f"{folder}/store")
        os.environ.pop("SHMQ_URL", None)
        _serve("default", Path(folder))
        processes.callback(subprocess.run, [*_COMMAND, "-q", "stop"], check=False)
        processes.callback(_remove_the_dead_one)
        for program, words in _LOAD:
            process = subprocess.Popen([sys.executable, "-c", program, *words], stderr=subprocess.DEVNULL)
            processes.callback(process.wait)
            processes.callback(process.terminate)
        _wait_until_all_work()
        yield Path(folder)


def _wait_until_all_work() -> None:
    until = time.monotonic() + START_SECONDS_MAX
    with Observer() as observer:
        while sum(bool(each.sent or each.received) for each in observer.snapshot().clients) < len(_LOAD):
            if time.monotonic() > until:
                raise RuntimeError("the clients of the pictures have not all begun")
            time.sleep(0.2)
    time.sleep(SETTLE_SECONDS)


def _serve(name: str, folder: Path) -> None:
    ports = ["--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"]
    store = ["--store", str(folder / f"store-{name}"), "--file-size", "256m"]
    subprocess.run([*_COMMAND, "-q", "serve", "--detach", "--name", name, *store, *ports], check=True)


def _leave_a_dead_one(folder: Path) -> None:
    _serve("old", folder)
    place = place_of("shmq://old")
    instance = read_instance(place.instance_path)
    assert instance is not None, "the broker that was to be killed has not started"
    for mark in instance.processes.values():
        signal_proven(mark, signal.SIGKILL)
    while any(is_alive(mark) for mark in instance.processes.values()):
        time.sleep(0.05)
    shutil.rmtree(instance.store_path)


def _remove_the_dead_one() -> None:
    place = place_of("shmq://old")
    for entry in find_leftovers(place):
        if entry.broker_name == "old":
            remove_leftover(place, entry)


def _health(observer: Observer) -> RenderableType:
    snapshot = _ours(observer.snapshot())
    found = Report(snapshot, list(all_findings(snapshot, Thresholds(), "usual")))
    return Text.from_ansi("\n".join(found.lines(colored=True)))


def _ours(snapshot: Snapshot) -> Snapshot:
    return snapshot._replace(segments=tuple(each for each in snapshot.segments if each.broker in BROKERS))


def _top(observer: Observer) -> RenderableType:
    before = observer.snapshot()
    time.sleep(1.0)
    return page(picture_of(before, observer.snapshot()), Choice(), width=WIDTH, height=LINES)


def _doctor() -> RenderableType:
    with open_case(None) as case:
        leftovers = tuple(entry for entry in case.leftovers if entry.broker_name in BROKERS)
        shown = replace(case, leftovers=leftovers, snapshot=_ours(case.snapshot))
        return report(shown, examine(shown))


def _console(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    command = [*_COMMAND, "console", "--no-token", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = [process.stdout.readline() for _ in range(2)][1].strip().rstrip("/")
            time.sleep(CONSOLE_SECONDS)
            with sync_playwright() as started:
                browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                for name, width, height, theme, path in _SCREENS:
                    page = browser.new_page(viewport={"width": width, "height": height})
                    page.goto(f"{url}{path}?theme={theme}")
                    if path == "/":
                        page.wait_for_selector("[data-drawn] canvas")
                    page.screenshot(path=folder / name)
                    print(folder / name)
                browser.close()
        finally:
            process.terminate()


def _write(path: Path, command: str, thing: RenderableType) -> None:
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(Text.assemble(("$ ", "green"), (command, "bold")))
    console.print(thing)
    svg = console.export_svg(title=command, unique_id=path.stem)
    path.write_text("\n".join(line.rstrip() for line in FONT_FACE.sub("", svg).splitlines()) + "\n")
    print(path)


def main(given: Sequence[str] | None = None) -> int:
    """Write the pictures; returns the exit code."""
    words = list(sys.argv[1:] if given is None else given)
    folder = Path(words[0] if words else "docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    with _world() as private:
        with Observer() as observer:
            _write(folder / "top.svg", "shmq top", _top(observer))
            _write(folder / "health.svg", "shmq health", _health(observer))
        _console(folder)
        _leave_a_dead_one(private)  # only now: the next start of any broker of this host sweeps it
        _write(folder / "doctor.svg", "shmq doctor", _doctor())
    return 0


if __name__ == "__main__":
    sys.exit(main())
