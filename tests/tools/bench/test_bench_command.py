"""`shmq bench` and `shmq demo` run to their end, tell figures, and leave nothing behind."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.testing import Broker
from shmq.tools.bench.seconds_report import draw_seconds
from tests.tools.shell import TIMEOUT, Shell

QUICK = ("--count", "1000", "--batch", "10", "--trips", "100", "--size", "100")
NAMES = ["append alone", "send each", "send 10 at once", "latency, sleeping", "latency, spinning"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where the commands put what is theirs; short, as a socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def shell(directory: Path) -> Shell:
    return Shell(SHMQ_RUNTIME_DIR=str(directory / "run"), TMPDIR=str(directory))


@pytest.mark.slow
def test_bench_measures_on_a_broker_of_its_own(shell: Shell, directory: Path) -> None:
    document = shell.json("bench", "bench", *QUICK)
    assert [result["name"] for result in document["results"]] == NAMES
    assert document["private"] and document["count"] == 1000
    assert all(result["rate"] > 0 for result in document["results"][:3])
    assert all(0 < result["p50"] <= result["p99"] <= result["max"] for result in document["results"][3:])
    assert list(directory.iterdir()) == []


@pytest.mark.slow
def test_bench_keeps_a_result_and_prints_the_next_beside_it(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    first = shell.json("bench", "bench", *QUICK, "--save", str(path))
    assert "against" not in first and 0 <= first["conditions"]["fresh"] <= 1
    path.write_text(path.read_text().replace(first["conditions"]["kernel"], "of another age"))
    second = shell.json("bench", "bench", *QUICK, "--against", str(path))["against"]
    assert [figure["name"] for figure in second["figures"] if figure["figure"] in ("rate", "p50")] == NAMES
    assert all(figure["ratio"] > 0 for figure in second["figures"])
    assert any(text.startswith("kernel: of another age saved") for text in second["differences"])
    printed = shell.run("bench", *QUICK, "--against", str(path), "--save", str(path))
    assert printed.status == 0 and "NOW / SAVED" in printed.out.decode() and "load before" in printed.out.decode()
    assert "not measured alike – kernel: of another age saved" in printed.err
    assert json.loads(path.read_text())["conditions"]["kernel"] == first["conditions"]["kernel"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_result_that_cannot_be_kept_is_printed_all_the_same(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "bench.json.tmp").mkdir()  # in the way of the new content
    result = shell.run("bench", *QUICK, "--save", str(tmp_path / "bench.json"))
    assert result.status == 64 and "the result cannot be written" in result.err, result
    assert "HALF ROUND TRIP" in result.out.decode() and "load before" in result.out.decode()


def test_files_of_results_are_refused_before_anything_runs(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"shmq_bench": 1, "kind": "sh')
    for words in (("--against", "half.json"), ("--against", "none.json"), ("--save", "none/bench.json")):
        option, name = words
        result = shell.run("bench", option, str(tmp_path / name))
        assert result.status == 64 and "measuring" not in result.err, result
        assert str(tmp_path / name) in result.err and "  do    " in result.err, result


@pytest.mark.slow
def test_bench_lets_groups_sleep_on_demand(shell: Shell, directory: Path) -> None:
    document = shell.json("bench", "bench", *QUICK, "--groups", "3")
    result = document["results"][-1]
    assert (document["groups"], result["name"]) == (3, "3 groups asleep")
    assert result["one_us"] > 0 and 0 < result["many_us"] <= result["last_us"]
    assert list(directory.iterdir()) == []


@pytest.mark.slow
def test_bench_on_a_running_broker_takes_its_topics_with_it(shmq_broker: Broker, shell: Shell) -> None:
    shell.ok("produce", "bench-mine", "x", "-u", shmq_broker.url)
    result = shell.run("bench", *QUICK, "-u", shmq_broker.url)
    assert result.status == 0 and "measuring: send each" in result.err
    assert "THROUGHPUT" in result.out.decode() and "HALF ROUND TRIP, US" in result.out.decode()
    topics = shell.json("topic-list", "topic", "list", "-a", "-u", shmq_broker.url)["topics"]
    assert [row["topic"] for row in topics if row["topic"].startswith("bench")] == ["bench-mine"]
    assert shell.fails(69, "bench", "--running", *QUICK)["type"] == "BrokerNotRunning"


@pytest.mark.slow
def test_a_sustained_run_tells_every_second_and_draws_them(shell: Shell, directory: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = directory / "seconds.svg"
    document = shell.json("bench-sustained", "bench", "--sustained", "3", "--size", "100", "--plot", str(picture))
    assert document["private"] and document["seconds"] == 3
    assert len(document["sent_each"]) == len(document["taken_each"]) == 3
    assert 0 <= document["worst"] <= document["median"] and document["worst"] <= document["rate"]
    assert 0 < document["p50"] <= document["p99"] <= document["p9999"] <= document["max"]
    assert len(document["p50_each"]) == len(document["p99_each"]) == 3
    assert all(0 <= middle <= slow for middle, slow in zip(document["p50_each"], document["p99_each"], strict=True))
    assert document["fresh"] == document["conditions"]["fresh"] and 0 <= document["fresh"] <= 1
    assert not any("cold" in warning for warning in document["warnings"]), "cold memory is what it measures"
    assert picture.read_text().startswith("<?xml")
    picture.unlink()
    assert list(directory.iterdir()) == []
    printed = shell.run("bench", "--sustained", "3")
    assert printed.status == 0 and "WORST S" in printed.out.decode() and "P99.99" in printed.out.decode()


def test_a_picture_shows_throughput_and_latency_and_not_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda figure, path: drawn.append(figure))
    start, counted = 77, [2_000_000, 3_000_000]
    figures = {"sent_each": [start, *counted], "taken_each": [start, *counted], "rate": 2.5e6}
    draw_seconds({**figures, "p50_each": [9000.0, 1.0, 2.0], "p99_each": [9000.0, 3.0, 4.0]}, str(tmp_path / "x.png"))
    (figure,) = drawn
    throughput, latency = figure.axes
    shown = {line.get_label(): list(line.get_ydata()) for axes in figure.axes for line in axes.get_lines()}
    assert shown["sent"] == shown["taken"] == [2.0, 3.0, 3.0], "the last second to its end, the first not at all"
    assert shown["p50"] == [1.0, 2.0, 2.0] and shown["p99"] == [3.0, 4.0, 4.0]
    assert "messages/s" in throughput.get_ylabel() and "µs" in latency.get_ylabel()
    assert throughput.get_xlim() == latency.get_xlim() == (1.0, 3.0)


@pytest.mark.parametrize("words", [("--plot", "x.png"), ("--sustained", "3", "--plot", "x.txt")])
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_runs(shell: Shell, words: tuple[str, ...]) -> None:
    assert shell.fails(64, "bench", *words)["type"] == "UsageError"


@pytest.mark.slow
def test_demo_sends_and_receives_the_same_number(shell: Shell, directory: Path) -> None:
    document = shell.json("demo", "demo", "--seconds", "500ms")
    assert document["sent"] == document["received"] > 0
    assert document["seconds"] >= 0.5
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_ended_demo_cleans_up(shell: Shell, directory: Path, number: signal.Signals) -> None:
    with shell.start("demo", "--seconds", "1h") as process:
        assert process.stderr is not None
        while b"msg/s" not in process.stderr.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 3
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 130
    assert list(directory.iterdir()) == []
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


@pytest.mark.slow
def test_what_waiting_for_the_disk_costs(shell: Shell, directory: Path) -> None:
    document = shell.json("bench-sync", "bench", "--sync", "--size", "100")
    assert 0 <= document["conditions"]["fresh"] == document["results"][0]["fresh"] <= 1
    assert document["private"] and [result["processes"] for result in document["results"]] == [1, 8, 32]
    for result in document["results"]:
        assert result["rate"] > 0 and 0 < result["p50"] <= result["p99"] <= result["max"]
    assert shell.fails(64, "bench", "--sync", "--sustained", "3")["type"] == "UsageError"
    assert list(directory.iterdir()) == []
