"""What a broker can be told: one frozen object, checked once, handed to every process of it.

It does not know where the values came from (command line, environment, a test).

Rules: (1) an object that exists is valid; (2) it travels between our processes as JSON on their command lines, so it
holds nothing secret.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from shmq.errors import UsageError
from shmq.shm.place import DEFAULT_BROKER_NAME, Place, check_broker_name, default_store, place_of
from shmq.store.commitlog import FILE_BYTES_MIN, FILE_BYTES_MULTIPLE

_CHOICES = {"flush": ("async", "sync"), "segments": ("posix", "sysv"), "log_format": ("text", "json")}

# name: (least, most); most keeps every product of the segment layout far from overflow
_RANGES = {
    "default_queues": (1, 1024),
    "topic_max": (16, 1 << 20),
    "queue_max": (16, 1 << 22),
    "frame_max": (2048, 1 << 24),
    "client_max": (4, 65536),
    "group_max": (4, 65536),
    "offset_max": (16, 1 << 24),
    "flush_interval_ms": (10, 60_000),
    "lease_ms": (100, 600_000),
    "retention_hours": (1, 24 * 3650),
    "unit_memory_bytes": (4 << 20, 1 << 36),
    "populate_bytes": (0, 1 << 30),
}


@dataclass(frozen=True)
class Options:
    """Settings of one broker.

    Attributes:
        runtime_dir: directory of the socket and instance.json; "" takes the place of the broker's name.
        store: the store directory; "" takes the default of the broker's name.
        file_bytes: size of one CommitLog file; a store keeps the size it was made with.
        lease_ms: how long a stopped process may hold the append lock.
        unit_memory_bytes: queue units that stay in memory after they were written to files.
        populate_bytes: log pages made present ahead of the writers.
        disk_warn_percent, disk_force_percent: use of the disk at which expired files are reported missing, and at which
            the oldest file goes although it has not expired.
    """

    broker_name: str = DEFAULT_BROKER_NAME
    runtime_dir: str = ""
    store: str = ""
    file_bytes: int = 1 << 30
    flush: str = "async"
    segments: str = "posix"
    auto_create: bool = True
    default_queues: int = 8
    topic_max: int = 16384
    queue_max: int = 131072
    frame_max: int = 262144
    client_max: int = 1024
    group_max: int = 4096
    offset_max: int = 262144
    flush_interval_ms: int = 500
    lease_ms: int = 2000
    retention_hours: int = 72
    disk_warn_percent: int = 75
    disk_force_percent: int = 85
    unit_memory_bytes: int = 64 << 20
    populate_bytes: int = 16 << 20
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_broker_name(self.broker_name)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} is {getattr(self, name)!r}, one of {', '.join(choices)} is known")
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{name} is {value!r}, from {least} to {most} is possible")
        if (
            type(self.file_bytes) is not int
            or self.file_bytes < FILE_BYTES_MIN
            or self.file_bytes % FILE_BYTES_MULTIPLE
        ):
            raise UsageError(
                f"file_bytes is {self.file_bytes!r}, it has to be a multiple of {FILE_BYTES_MULTIPLE} "
                f"and at least {FILE_BYTES_MIN}",
                hint="--file-bytes 1073741824 is RocketMQ's size",
            )
        if not 0 < self.disk_warn_percent <= self.disk_force_percent <= 100:
            raise UsageError(
                f"disk_warn_percent {self.disk_warn_percent} and disk_force_percent {self.disk_force_percent} "
                "have to rise and lie between 1 and 100"
            )
        for name in ("runtime_dir", "store"):
            if getattr(self, name) and not Path(getattr(self, name)).is_absolute():
                raise UsageError(f"{name} is {getattr(self, name)!r}, an absolute path is needed")

    @property
    def place(self) -> Place:
        """Where the broker is found."""
        if self.runtime_dir:
            return Place(self.broker_name, Path(self.runtime_dir))
        return place_of(f"shmq://{self.broker_name}")

    @property
    def store_path(self) -> Path:
        """The store directory."""
        return Path(self.store) if self.store else default_store(self.broker_name)

    @property
    def flush_sync(self) -> bool:
        """Whether nothing is acknowledged before it is on disk."""
        return self.flush == "sync"

    def replaced(self, **values: Any) -> Options:
        """Return a checked copy with these settings."""
        return replace(self, **values)

    def to_json(self) -> str:
        """Return the text `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Read what `to_json` wrote.

        Raises:
            UsageError: the text is no JSON object, or names a setting that does not exist.
        """
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the options are not JSON: {error}") from error
        known = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not data.keys() <= known:
            unknown = sorted(data.keys() - known) if isinstance(data, dict) else [type(data).__name__]
            raise UsageError(f"there is no such option: {', '.join(unknown)}")
        return cls(**data)
