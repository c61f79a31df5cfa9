"""The programs in examples/spark and those of docs/reference/spark.md and docs/spark-jobs.md work as they stand."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/spark"
LINES = 300


@pytest.fixture(scope="module")
def filled(broker: Any, mq: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("doc")
    text = [f"line {number} of a manual " + "that goes on " * (20 * (number % 10 == 0)) for number in range(LINES)]
    (folder / "manual.txt").write_text("\n".join(text[:200]))
    (folder / "copyright").write_text("\n".join(text[200:]))
    program = [sys.executable, "-P", str(EXAMPLES / "fill.py"), broker.url, str(folder)]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == f"{LINES} lines in topic lines\n"
    mq.send("lines", b"caf\xe9")  # as other programs write: without a tag, and not in UTF-8
    return broker


def run(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Run an example in this process' Spark, and return what it prints."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_words_are_counted(spark: Any, filled: Any, capsys: Any, monkeypatch: Any) -> None:
    said = run("read.py", capsys, monkeypatch, filled.url).splitlines()
    assert [line.split() for line in said] == [["600", "goes"], ["600", "that"], ["300", "line"], ["300", "manual"]]


def test_headers_are_grouped(spark: Any, filled: Any, capsys: Any, monkeypatch: Any) -> None:
    said = run("headers.py", capsys, monkeypatch, filled.url).splitlines()
    assert [line.split()[:2] for line in said] == [["txt", "200"], ["plain", "100"], ["(none)", "1"]]


def test_a_result_is_written_once_a_day(spark: Any, filled: Any, capsys: Any, monkeypatch: Any) -> None:
    for _ in range(2):
        assert run("write.py", capsys, monkeypatch, filled.url, "2026-11-20") == "30 lines in topic long-lines\n"
    assert run("write.py", capsys, monkeypatch, filled.url, "2026-11-21") == "60 lines in topic long-lines\n"


def test_a_stream_takes_what_is_new(
    spark: Any, filled: Any, mq: Any, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    said = run("stream.py", capsys, monkeypatch, filled.url, str(tmp_path))
    assert said.startswith(f"{LINES + 1} new lines, {LINES + 1} in ")
    mq.send("lines", b"one more", tag="txt")
    said = run("stream.py", capsys, monkeypatch, filled.url, str(tmp_path))
    assert said.startswith(f"1 new lines, {LINES + 2} in ")


def test_the_first_program_of_the_page_works_as_it_is_printed(spark: Any, broker: Any, mq: Any, tmp_path: Path) -> None:
    section = (ROOT / "docs/reference/spark.md").read_text().split("## A first program", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert "/usr/share/doc" in code
    program = tmp_path / "analyse.py"
    program.write_text(code)
    environment = {**os.environ, "SHMQ_URL": broker.url}
    finished = subprocess.run(
        [sys.executable, "-P", str(program)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "package|lines|" in finished.stdout
    with mq.pull_consumer("licences") as consumer:
        assert b"opyright" in bytes(consumer.poll(1, 5.0)[0].body)


def test_the_lines_for_plain_files_work_as_they_are_printed(spark: Any, filled: Any, tmp_path: Path) -> None:
    section = (ROOT / "docs/spark-jobs.md").read_text().split("### Plain Parquet files", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    chosen = f'.option("store", "{filled.url}").option("topic", "lines")'
    code = code.replace('.option("topic", "orders")', chosen).replace("/data", str(tmp_path))
    counts = []
    for _ in range(2):
        exec(code, {"spark": spark})
        counts.append(spark.read.parquet(str(tmp_path / "orders")).count())
    assert counts[0] == counts[1] >= LINES
