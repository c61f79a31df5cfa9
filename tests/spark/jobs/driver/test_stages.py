"""How far Spark is, as a job tells it: counts of tasks, and that a cluster gives nothing, said once."""

from __future__ import annotations

import threading
import time
from typing import Any

from shmq.spark.jobs.driver.stages import Idle, Stages, Standing, standing
from shmq.tools.terminal.output import Style, Terminal
from tests.spark.jobs.killing import eventually

WAITING, BUSY = Standing(4, 0, 0), Standing(4, 1, 2)


def test_that_no_executor_takes_tasks_is_said_once_and_late() -> None:
    idle = Idle(0.0)
    assert [idle.is_due(WAITING, now) for now in (1.0, 19.0, 21.0, 60.0)] == [False, False, True, False]


def test_waiting_counts_from_the_last_moment_without_tasks_and_ends_with_the_first_one_taken() -> None:
    idle = Idle(0.0)
    assert not idle.is_due(None, 100.0) and not idle.is_due(WAITING, 110.0)
    assert not idle.is_due(BUSY, 111.0) and not idle.is_due(WAITING, 500.0)


def test_the_tasks_of_a_stage_are_counted_while_it_works(spark: Any, capsys: Any) -> None:
    context = spark.sparkContext
    context.parallelize(range(2), 2).count()
    eventually(lambda: standing(context) is None, lambda: "nothing at work")
    stage = context.parallelize(range(4), 4)
    slow = threading.Thread(target=lambda: stage.foreach(lambda _: time.sleep(1)))  # not a wait: the work
    with Stages(context, Terminal(Style())) as stages:
        slow.start()
        found = eventually(lambda: standing(context), lambda: "a stage")
        assert found.total == 4 and found.running <= 2
        stages.say("beside it")
        slow.join()
    assert "beside it\n" in capsys.readouterr().err
