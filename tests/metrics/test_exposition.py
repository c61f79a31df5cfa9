"""What is written is OpenMetrics, as prometheus-client reads it."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from shmq.metrics.catalogue import FAMILIES
from shmq.metrics.exposition import Samples, label_text, render
from shmq.metrics.family import COUNTER, HISTOGRAM, INFO

BASE = {"cluster": "c", "node_id": "b"}


def test_every_family_is_read_back_with_kind_unit_meaning_and_value() -> None:
    samples = Samples()
    for number, (name, family) in enumerate(FAMILIES.items(), 1):
        labels = label_text((label, f"{label}-{number}") for label in family.labels)
        if family.kind == HISTOGRAM:
            samples.add_histogram(name, [*range(len(family.bounds) + 1), number * family.scale], labels)
        else:
            samples.put(name, 1 if family.kind == INFO else number, labels)
    found = {each.name: each for each in text_string_to_metric_families(render(samples, BASE))}
    assert found.keys() == FAMILIES.keys()
    for number, (name, family) in enumerate(FAMILIES.items(), 1):
        metric = found[name]
        assert (metric.type, metric.unit, metric.documentation) == (family.kind, family.unit, family.meaning)
        values = {sample.name: sample for sample in metric.samples}
        assert all(set(BASE) | set(family.labels) <= sample.labels.keys() for sample in metric.samples)
        if family.kind == HISTOGRAM:
            count = len(family.bounds) * (len(family.bounds) + 1) // 2
            assert (values[f"{name}_sum"].value, values[f"{name}_count"].value) == (number, count)
        else:
            assert values[family.sample].value == (1 if family.kind == INFO else number)


def test_labels_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    samples = Samples()
    samples.put("shmq_connections", 3, label_text((("transport", odd),)))
    [metric] = text_string_to_metric_families(render(samples, BASE))
    assert metric.samples[0].labels["transport"] == odd


def test_the_same_counter_of_two_writers_is_added_up() -> None:
    samples = Samples()
    for _ in range(2):
        samples.add("shmq_redeliveries", 4)
        samples.add_histogram("shmq_flush_latency_seconds", [1] * 18 + [5])
    text = render(samples, {})
    assert "shmq_redeliveries_total{} 8\n" in text and "shmq_flush_latency_seconds_count{} 36\n" in text


def test_names_follow_the_habits_of_openmetrics() -> None:
    for name, family in FAMILIES.items():
        assert name == family.name and not name.endswith("_total")
        assert family.sample.endswith("_total") == (family.kind == COUNTER)
        assert not family.unit or name.endswith(family.unit)
        assert (family.kind == HISTOGRAM) == bool(family.bounds) and sorted(family.bounds) == list(family.bounds)
        assert "pid" not in family.labels
