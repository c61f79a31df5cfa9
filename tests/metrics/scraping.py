"""What the tests of live metrics share: one reading of them, and waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

DEADLINE_SECONDS = 30.0


def eventually(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + DEADLINE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return value


class Scrape:
    """One reading."""

    def __init__(self, text: str) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(text)}

    def __call__(self, sample: str, **labels: str) -> float:
        """The sum of the samples of that name with these labels."""
        return sum(
            each.value
            for family in self.families.values()
            for each in family.samples
            if each.name == sample and labels.items() <= each.labels.items()
        )
