"""What the tests of live metrics share: one reading of them."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families


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
