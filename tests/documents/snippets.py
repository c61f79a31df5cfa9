"""The programs and commands of a page, as a user who pastes them runs them, and what they have to print.

    ```python            a program, run at once; a first line `# orders.py` makes it a file, run when a command says so
    ```text              what the program before it prints
    ```console           `$ command`, then what it prints; `^C` as the last line ends a program that waits for more

A line that is expected is found in the output, in the order of the page; `…` in it stands for any text.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

TIMEOUT = 300.0
NOT_RUN = ("pip install", "shmq serve", "python -m venv", "source ", "docker ", "mqadmin ", "mvn ", "java ")
"""Commands that need the network, root, or a terminal of their own; a broker is there."""


@dataclass
class Step:
    """One thing to run: a program's text, or a command; and the lines that it has to print."""

    text: str
    is_command: bool
    expected: list[str] = field(default_factory=list)
    is_ended: bool = False  # by Ctrl-C, after it printed what is expected


def steps_of(page: Path, folder: Path) -> Iterator[Step]:
    """What a page has to run, in its order; files are written to `folder` when the page comes to them."""
    program: Step | None = None
    for kind, block in re.findall(r"^```(python|text|console)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if kind == "text" and program is not None:
            program.expected = block.splitlines()
        if program is not None:
            yield program
            program = None
        if kind == "console":
            yield from _commands(block)
        elif kind == "python" and (named := re.match(r"# ([\w/]+\.py)\n", block)):
            (folder / named[1]).write_text(block)
        elif kind == "python":
            program = Step(block, is_command=False)
    if program is not None:
        yield program


def _commands(block: str) -> Iterator[Step]:
    step: Step | None = None
    for line in block.splitlines():
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(re.sub(r"\s+#\s.*$", "", line[2:]), is_command=True)
        elif step is not None and line == "^C":
            step.is_ended = True
        elif step is not None:
            step.expected.append(line)
    if step is not None:
        yield step


def run(step: Step, folder: Path, url: str) -> None:
    """Run one step in a page's folder, against a broker; AssertionError says what was not printed."""
    if step.is_command and step.text.startswith(NOT_RUN):
        return
    # `python` and `shmq` are those that run this test.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "SHMQ_URL": url, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    for name in ("PYTEST_ADDOPTS", "PYTHONSAFEPATH"):  # ours, and the benchmarks', which some tests import
        environment.pop(name, None)
    program = ["bash", "-c", f"exec {step.text}" if step.is_ended else step.text]
    process = subprocess.Popen(
        program if step.is_command else [sys.executable, "-c", step.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A program that Ctrl-C ends gets it alone.
        start_new_session=True,
    )
    printed = _Printed(process)
    try:
        printed.find(step.expected)
        if step.is_ended:
            process.send_signal(signal.SIGINT)
        status = process.wait(TIMEOUT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.close()
    assert step.is_ended or status == 0, f"exit status {status} of\n{step.text}\nwhich printed\n{printed.text}"


class _Printed:
    """What a process prints, line by line as it comes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.text = ""
        self._lines: Queue[str | None] = Queue()
        self._process = process
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def find(self, expected: list[str]) -> None:
        for wanted in expected:
            pattern = re.compile(".*".join(re.escape(part) for part in wanted.strip().split("…")))
            while True:
                try:
                    line = self._lines.get(timeout=TIMEOUT)
                except Empty:
                    line = None
                assert line is not None, f"no line is\n{wanted}\nin\n{self.text}"
                self.text += line
                if pattern.search(line):
                    break

    def close(self) -> None:
        self._thread.join(TIMEOUT)
        while not self._lines.empty():
            self.text += self._lines.get() or ""
        if self._process.stdout is not None:
            self._process.stdout.close()
