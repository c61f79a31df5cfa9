"""What the runs under load have in common: their topics, their end, and their command lines."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import shmq
from shmq.testing import Broker
from tests.ha.elected.group import Group
from tests.ha.elected.load import ASKED, DELAYED, TOPIC, Load
from tests.ha.pair import assert_equal


def make_topics(leader: Broker) -> None:
    """Make the topics of the load."""
    with leader.connect() as mq:
        for topic in (TOPIC, DELAYED, ASKED):
            mq.admin.create_topic(topic)


def wait_for_rest(group: Group, load: Load) -> Broker:
    """Let all brokers be in sync, and every receiver get what is acknowledged; return the leader."""
    leader = group.wait_for_set(len(group.brokers))
    load.stop_sending()
    load.wait_for_receivers(leader)
    return leader


def check_logs(group: Group, leader: Broker) -> None:
    """Each broker has the leader's bytes. Raises AssertionError."""
    for broker in group.brokers:
        if broker is not leader:
            assert_equal(leader, broker)


def run_as_told(
    run: Callable[[int, int, int, Path], dict[str, Any]],
    what: str,
    default: int,
    description: str | None,
    *,
    parts: str = "brokers",
    choices: Sequence[int] = (2, 3),
) -> int:
    """Read the command line of a run of so many of something, run it, and print what it returns; the exit status.

    Args:
        parts: the option for the second number of `run`, which is one of `choices`, the first if it is not given.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {_module_of(run)}", description=description)
    parser.add_argument(f"--{what}", type=int, default=default, dest="count")
    parser.add_argument(f"--{parts}", type=int, default=choices[0], choices=choices, dest="parts")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(json.dumps(run(options.count, options.parts, options.seed, Path(folder))))
        except (AssertionError, shmq.ShmqError) as error:
            print(f"violation: {error!r}"[:20_000], file=sys.stderr)
            return 1
    return 0


def _module_of(run: Callable[..., Any]) -> str:
    return f"tests.ha.{'.'.join(Path(run.__code__.co_filename).with_suffix('').parts[-2:])}"
