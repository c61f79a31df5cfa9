"""Reads a broker's figures: tables and words of its segments, its counters, /proc and the file systems.

Everything is read-only and works while the daemon is dead or stopped; only the bridges' counters stand still then. A
local send or receive has no instruction more for it: what the log, queues and offsets say of themselves is not counted
a second time, and record sizes are counted by the keeper from the units it writes.

    of each queue    two words of one copy of all queues          messages, bytes
    of each offset   its entry, joined by `shmq.figures`          lag, in flight and ready (group_progress.py)
    counters         one copy of each writer's block

Rules: (1) labels are bounded by what exists: counters of topics and groups that are gone are left out;
(2) a gauge that a process wrote is left out when that process is dead; a counter stays.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from shmq.errors import SegmentError, ShmqError
from shmq.figures.log_state import keeper_silence_seconds
from shmq.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from shmq.metrics.catalogue import FAMILIES
from shmq.metrics.exposition import Samples, label_text
from shmq.metrics.family import CLUSTER, COUNTER, DISPATCHED, HISTOGRAM
from shmq.metrics.group_progress import INFLIGHT, GroupProgress
from shmq.metrics.replication import read_replication
from shmq.metrics.vital_signs import beats_of
from shmq.plain_file import allocated_bytes
from shmq.protocol.codes import TopicKind
from shmq.protocol.system_topics.transaction import OP_TOPIC
from shmq.shm.core import ACK_CONFIRMED, READ_ONLY_REASONS, Store, StoreFigures
from shmq.shm.counter_reader import CounterReader, open_counters
from shmq.shm.instance import Instance
from shmq.shm.liveness import is_alive
from shmq.shm.presence import presence_of_key
from shmq.shm.segment import SHM_DIRECTORY

_LOCAL_DISK = label_text((("storage_type", "local"), ("storage_medium", "disk")))
_READS_AND_WRITES, _READS = 6, 4
_CLIENT_STATES = {1: "awake", 2: "asleep"}


class Gatherer:
    """Gathers from one generation of segments, again and again."""

    def __init__(self, store: Store, instance: Instance, links_path: Path) -> None:
        self._links_path = links_path
        self._store = store
        self._figures = StoreFigures(store)
        self._instance = instance
        self._counters: CounterReader | None = None
        with contextlib.suppress(SegmentError):  # a broker of an earlier version has none
            self._counters = open_counters(instance)
        self._cluster = "DefaultCluster"
        self._tables_version = -1
        self._topics: dict[str, str] = {}  # name -> labels
        self._topic_queues: dict[str, tuple[int, ...]] = {}
        self._topic_of: dict[int, str] = {}  # queue -> name
        self._groups: dict[int, str] = {}
        self._group_labels: dict[tuple[str, str], str] = {}
        self._attended: set[str] = set()  # groups that have members

    def close(self) -> None:
        """Let go of the counters; the store is the caller's."""
        if self._counters is not None:
            self._counters.close()

    @property
    def cluster(self) -> str:
        """The cluster's name, as the keeper noted it."""
        return self._cluster

    def gather(self) -> Samples:
        """Return all samples as of now.

        Raises:
            ShmqError: the segments cannot be read.
        """
        began = time.monotonic()
        samples = Samples()
        self._learn_tables()
        self._read_words(samples)
        self._read_topics(samples)
        self._read_counters(samples)
        self._read_progress(samples)
        self._read_memory(samples)
        self._read_processes(samples)
        read_replication(self._links_path, samples)
        samples.put("shmq_scrape_duration_seconds", time.monotonic() - began)
        return samples

    # -- the segments

    def _learn_tables(self) -> None:
        version = self._store.table_version  # read first: what is kept may be too new, never too old
        if version == self._tables_version:
            return
        self._topics, self._topic_queues, self._topic_of = {}, {}, {}
        for topic in self._store.topics():
            name = topic["name"]
            kind = TopicKind(topic["kind"]).name.lower() if topic["kind"] in list(TopicKind) else "normal"
            self._topics[name] = label_text(
                (("topic", name), ("message_type", kind), ("is_system", _truth(is_system_topic(name))))
            )
            self._topic_queues[name] = tuple(topic["queues"])
            self._topic_of |= dict.fromkeys(topic["queues"], name)
        self._groups = dict(self._store.groups())
        self._group_labels.clear()
        self._tables_version = version

    def _read_words(self, samples: Samples) -> None:
        store, stats = self._store, self._figures.stats()
        head = store.head
        log_end, durable_end, reason = store.log_end, store.durable_end, store.read_only
        samples.put("shmq_broker", 1, self._identity(head))
        samples.put("shmq_log_end_bytes", log_end)
        samples.put("shmq_log_begin_bytes", store.log_begin)
        samples.put("shmq_log_allocated_bytes", store.allocated_end)
        samples.put("rocketmq_storage_flush_behind_bytes", max(0, log_end - durable_end), _LOCAL_DISK)
        samples.put("rocketmq_broker_permission", _READS if reason else _READS_AND_WRITES)
        for number, text in READ_ONLY_REASONS.items():
            if number:
                samples.put("shmq_read_only", int(reason == number), label_text((("reason", text),)))
        if head["ack_rule"] == ACK_CONFIRMED:
            samples.put("shmq_replicas_in_sync", store.in_sync_count)
            samples.put("shmq_unconfirmed_bytes", max(0, log_end - store.confirmed_end))
        for name, word in _WORDS.items():
            samples.put(name, stats[word])
        samples.put("shmq_lock_held", int(stats["lock_tid"] != 0))
        samples.put("shmq_claim_open", int(stats["claim_state"] != 0))
        for state, frames in (
            ("used", self._figures.frames_used),
            ("ready", stats["frame_ready"]),
            ("max", head["frame_max"]),
        ):
            samples.put("shmq_frames", frames, label_text((("state", state),)))
        if (silence := keeper_silence_seconds(store)) is not None:
            samples.put("shmq_keeper_beat_age_seconds", silence)
        oldest_ms = -1
        if log_end > store.log_begin:
            with contextlib.suppress(ShmqError):
                oldest_ms = store.message_at(store.log_begin).store_ms
        age_ms = max(0, _now_ms() - oldest_ms) if oldest_ms >= 0 else 0
        samples.put("rocketmq_storage_message_reserve_time_milliseconds", age_ms, _LOCAL_DISK)
        states = dict.fromkeys(_CLIENT_STATES.values(), 0)
        for client in self._figures.clients():
            if client.state in _CLIENT_STATES:
                states[_CLIENT_STATES[client.state]] += 1
        for name, count in states.items():
            samples.put("shmq_clients", count, label_text((("state", name),)))

    def _identity(self, head: Mapping[str, object]) -> str:
        return label_text(
            (
                ("version", self._instance.version),
                ("abi", str(head["abi"])),
                ("generation", f"{self._instance.generation:016x}"),
                ("segments", self._instance.kind),
                ("flush", "sync" if head["flush_sync"] else "async"),
            )
        )

    def _read_topics(self, samples: Samples) -> None:
        ends = memoryview(self._figures.queue_counts()).cast("Q")
        known, mask = len(ends) // 2, self._store.head["queue_mask"]
        for name, queues in self._topic_queues.items():
            labels = self._topics[name]
            messages = size = 0
            for queue in queues:
                entry = queue & mask
                if entry < known:
                    messages += ends[2 * entry]
                    size += ends[2 * entry + 1]
            samples.put("rocketmq_messages_in", messages, labels)
            samples.put("rocketmq_throughput_in", size, labels)
            if name.startswith(DEAD_LETTER_PREFIX):
                group = label_text((("consumer_group", name.removeprefix(DEAD_LETTER_PREFIX)),))
                samples.put("rocketmq_send_to_dlq_messages", messages, group)
            elif name == OP_TOPIC:
                samples.put("shmq_transactions_settled", messages)
        samples.put("rocketmq_topic_number", len(self._topics))
        samples.put("rocketmq_consumer_group_number", len(self._groups))
        samples.put("shmq_queues", len(self._topic_of))

    def _read_progress(self, samples: Samples) -> None:
        """Of groups; the counters were read, so those with members are known."""
        GroupProgress(self._store, self._topic_of, self._groups, self._attended, self._labels_of).read(samples)

    def _labels_of(self, topic: str, group: str) -> str:
        found = self._group_labels.get((topic, group))
        if found is None:
            found = self._group_labels[topic, group] = label_text(
                (
                    ("topic", topic),
                    ("consumer_group", group),
                    ("is_retry", _truth(topic.startswith(RETRY_PREFIX))),
                    ("is_system", _truth(is_system_topic(topic))),
                )
            )
        return found

    # -- counters

    def _read_counters(self, samples: Samples) -> None:
        if self._counters is None:
            return
        groups = set(self._groups.values())
        self._attended.clear()
        refused = 0
        samples.put("shmq_start_time_seconds", self._counters.made_ms / 1000)
        blocks, now_ns = self._counters.blocks(), time.monotonic_ns()
        for role, beat_ns in beats_of(blocks).items():
            samples.put("shmq_beat_age_seconds", max(0, now_ns - beat_ns) / 1e9, label_text((("role", role),)))
        for block in blocks:
            refused += block.refused
            alive = is_alive(block.mark)
            for entry in block.entries:
                if entry.family == CLUSTER:
                    self._cluster = dict(entry.labels).get("cluster", self._cluster)
                    continue
                if entry.family == DISPATCHED:
                    behind = max(0, self._store.log_end - entry.words[0])
                    samples.put("rocketmq_storage_dispatch_behind_bytes", behind, _LOCAL_DISK)
                    continue
                family = FAMILIES.get(entry.family)
                if family is None or not self._exists(entry.labels, groups):
                    continue
                labels = self._labels_said(family.name, entry.labels)
                if family.name == _MEMBERS and alive and entry.words[0]:
                    self._attended.add(dict(entry.labels).get("consumer_group", ""))
                if family.kind == HISTOGRAM and len(entry.words) == len(family.bounds) + 2:
                    samples.add_histogram(family.name, entry.words, labels)
                elif family.kind == COUNTER or (alive and (entry.words[0] or not entry.labels)):
                    samples.add(family.name, entry.words[0], labels)
        samples.put("shmq_counters_refused", refused)

    def _exists(self, labels: tuple[tuple[str, str], ...], groups: set[str]) -> bool:
        return all(
            (name != "topic" or value in self._topics) and (name != "consumer_group" or value in groups)
            for name, value in labels
        )

    def _labels_said(self, family: str, labels: tuple[tuple[str, str], ...]) -> str:
        """The labels of a counter, with what is known of its topic and group."""
        if family in _OF_GROUPS:
            known = dict(labels)
            return self._labels_of(known.get("topic", ""), known.get("consumer_group", ""))
        if family == _SIZES:
            return self._topics.get(dict(labels).get("topic", ""), "")
        return label_text(labels)

    # -- around them

    def _read_memory(self, samples: Samples) -> None:
        for part, name in zip(("control", "units", "readers"), self._instance.segments, strict=True):
            with contextlib.suppress(OSError):
                if self._instance.kind == "posix":
                    status = os.stat(f"{SHM_DIRECTORY}{name}")
                    for state, size in (("size", status.st_size), ("used", allocated_bytes(status))):
                        samples.put("shmq_segment_bytes", size, label_text((("segment", part), ("state", state))))
        for family, path in (("shmq_shm_bytes", str(SHM_DIRECTORY)), ("shmq_disk_bytes", self._instance.store_path)):
            with contextlib.suppress(OSError):
                room = os.statvfs(path)
                used, free = (room.f_blocks - room.f_bfree) * room.f_frsize, room.f_bavail * room.f_frsize
                samples.put(family, used, label_text((("state", "used"),)))
                samples.put(family, free, label_text((("state", "free"),)))
                if family == "shmq_disk_bytes":
                    samples.put("rocketmq_storage_size_bytes", used, _LOCAL_DISK)
        count = presence_of_key(self._instance.presence_key, uid=self._instance.uid)
        samples.put("shmq_attached_processes", -1 if count is None else count)

    def _read_processes(self, samples: Samples) -> None:
        for role, mark in self._instance.processes.items():
            labels = label_text((("role", role),))
            alive = is_alive(mark)
            samples.put("shmq_process_up", int(alive), labels)
            if not alive:
                continue
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(mark.pid)
                with process.oneshot():
                    times = process.cpu_times()
                    samples.put("shmq_process_cpu_seconds", times.user + times.system, labels)
                    samples.put("shmq_process_resident_memory_bytes", process.memory_info().rss, labels)
                    samples.put("shmq_process_threads", process.num_threads(), labels)
                    samples.put("shmq_process_open_fds", process.num_fds(), labels)


_OF_GROUPS = frozenset(("rocketmq_messages_out", "rocketmq_throughput_out", INFLIGHT))
_SIZES, _MEMBERS = "rocketmq_message_size", "rocketmq_consumer_connections"
_WORDS = {
    "shmq_appended_messages": "appended",
    "shmq_appended_bytes": "appended_bytes",
    "shmq_append_busy": "busy",
    "shmq_lock_acquisitions": "lock_count",
    "shmq_lock_holder_deaths": "deaths",
    "shmq_claims": "claims",
    "shmq_claims_evicted": "claims_evicted",
    "shmq_log_rolls": "rolled",
    "shmq_wakeups": "wakes",
}


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
