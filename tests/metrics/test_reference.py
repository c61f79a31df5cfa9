"""The document and the dashboard say what the code does."""

import json
import re
from pathlib import Path

from shmq.metrics.catalogue import FAMILIES
from shmq.metrics.family import HISTOGRAM

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/reference/metrics.md"
DASHBOARD = ROOT / "docs/grafana/shmq.json"
_METRIC = re.compile(r"\b(?:rocketmq|shmq)_[a-z_]+\b")


def row_of(name: str) -> str:
    family = FAMILIES[name]
    labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
    return f"| `{family.sample}` | {family.kind} | {labels} | {family.meaning} | {family.source} |"


def samples() -> set[str]:
    """Every name a query may use."""
    found = {family.sample for family in FAMILIES.values() if family.kind != HISTOGRAM}
    for family in FAMILIES.values():
        if family.kind == HISTOGRAM:
            found |= {f"{family.name}_{part}" for part in ("bucket", "count", "sum")}
    return found


def test_the_document_has_a_row_for_each_metric_and_no_other() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert rows == [row_of(name) for name in FAMILIES]


def test_every_metric_the_dashboard_asks_for_exists() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [each["query"]["query"] for each in dashboard["templating"]["list"] if isinstance(each["query"], dict)]
    named = set(_METRIC.findall(" ".join(queries)))
    assert len(named) > 25 and named <= samples(), named - samples()


def test_the_dashboard_shows_what_waits_and_how_large_messages_are() -> None:
    text = DASHBOARD.read_text()
    of_groups = ("lag_messages", "lag_latency_milliseconds", "ready_messages", "inflight_messages", "queueing_latency")
    wanted = [*(f"rocketmq_consumer_{name}" for name in of_groups), "rocketmq_message_size_bucket"]
    assert [name for name in wanted if name not in text] == []


def test_no_panel_of_the_dashboard_lies_on_another() -> None:
    taken: dict[tuple[int, int], list[str]] = {}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                taken.setdefault((x, y), []).append(panel["title"])
    assert {place: titles for place, titles in taken.items() if len(titles) > 1} == {}


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers) and dashboard["uid"] and dashboard["schemaVersion"] >= 36
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0
        for target in panel.get("targets", []):
            assert target["expr"].count("(") == target["expr"].count(")")
            assert target["expr"].count("{") == target["expr"].count("}")
            assert 'node_id=~"$broker"' in target["expr"], target["expr"]
