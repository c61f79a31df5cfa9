"""The description of one generation of segments, as it is in instance.json and in the answer to a client that attaches.

The text comes from a file or a socket, so every field is checked when it is read.

    {"version": "0.1.0", "abi": 1, "broker_name": "default", "generation": "00c0ffee…" (16 hex digits), "kind": "posix",
     "segments": ["/shmq.default.00c0….control", "….units", "….readers"]      or three SysV ids,
     "segment_bytes": [control, units, readers], "presence_key": 12648430, "store_path": "/var/lib/shmq/default",
     "uid": 0, "mode": 432, "boot_id": "…", "pid_namespace": 4026531836,
     "processes": {"supervisor": [4711, 883201], "keeper": [4712, 883207], "bridge": [4713, 883260]},
     "settings": {"disk_warn_percent": 75, …}, "recovery": {"at_ms": …, "records": 1204113, …}}      whole numbers
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from shmq.errors import SegmentError
from shmq.plain_file import NoPlainFile, read_plain
from shmq.shm.core import ABI
from shmq.shm.descriptors import above_standard
from shmq.shm.liveness import ProcessMark, boot_id
from shmq.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_PARTS = ("control", "units", "readers")
_JSON_BYTES_MAX = 64 << 10
_NONE: Mapping[str, Any] = MappingProxyType({})


class Instance(NamedTuple):
    """One generation of segments, and whose it is."""

    broker_name: str
    generation: int
    kind: str  # "posix" or "sysv"
    segments: tuple[str, ...] | tuple[int, ...]
    segment_bytes: tuple[int, int, int]
    presence_key: int
    store_path: str
    uid: int
    mode: int
    boot_id: str
    pid_namespace: int
    version: str = __version__
    abi: int = ABI
    processes: Mapping[str, ProcessMark] = _NONE
    settings: Mapping[str, int] = _NONE  # of the broker, for the checks of other processes
    recovery: Mapping[str, int] = _NONE  # what filled the segments: when, what was found

    @property
    def log_directory(self) -> str:
        """The directory of the log's files, which writers and readers map."""
        return f"{self.store_path}/commitlog"

    @property
    def semaphore_prefix(self) -> str:
        """Name of a client slot's semaphore without its slot number."""
        return f"/shmq.{self.broker_name}.{self.generation:016x}.w"

    def with_processes(self, **processes: ProcessMark | None) -> Instance:
        """Return a copy that names these processes; None takes one out."""
        merged = {**self.processes, **processes}
        return self._replace(processes={name: mark for name, mark in merged.items() if mark is not None})

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object of this instance."""
        return {
            "version": self.version,
            "abi": self.abi,
            "broker_name": self.broker_name,
            "generation": f"{self.generation:016x}",
            "kind": self.kind,
            "segments": list(self.segments),
            "segment_bytes": list(self.segment_bytes),
            "presence_key": self.presence_key,
            "store_path": self.store_path,
            "uid": self.uid,
            "mode": self.mode,
            "boot_id": self.boot_id,
            "pid_namespace": self.pid_namespace,
            "processes": {name: [mark.pid, mark.start] for name, mark in self.processes.items()},
            "settings": dict(self.settings),
            "recovery": dict(self.recovery),
        }

    def to_json(self) -> str:
        """Return the text of instance.json."""
        return json.dumps(self.to_object(), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Instance:
        """Read the text of instance.json.

        Raises:
            SegmentError: the text is no JSON, or a field is missing or not what it must be.
        """
        if len(text) > _JSON_BYTES_MAX:
            raise SegmentError(f"the instance description has {len(text)} characters, more than {_JSON_BYTES_MAX}")
        try:
            return cls.from_object(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise SegmentError(f"the instance description is not readable: {error}") from error

    @classmethod
    def from_object(cls, data: Any) -> Instance:
        """Check a parsed JSON object and return the instance it describes.

        Raises:
            SegmentError: a field is missing or not what it must be.
        """
        if not isinstance(data, dict):
            raise SegmentError("the instance description is not a JSON object")
        try:
            return _checked(data)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SegmentError(f"the instance description is not usable: {error!r}") from error


def _natural(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}")
    return value


def _checked(data: dict[str, Any]) -> Instance:
    kind = _text(data["kind"], "kind")
    name = _text(data["broker_name"], "broker_name")
    generation = int(_text(data["generation"], "generation"), 16)
    segments: tuple[str, ...] | tuple[int, ...]
    if kind == "posix":
        segments = tuple(_text(segment, "segment") for segment in data["segments"])
        # Nothing else may be opened or unlinked in the name of this broker, whatever the text says.
        if segments != segment_names(name, generation):
            raise ValueError(f"segments are {segments!r}")
    elif kind == "sysv":
        segments = tuple(_natural(segment, "segment") for segment in data["segments"])
    else:
        raise ValueError(f"kind is {kind!r}")
    control, units, readers = (_natural(size, "segment_bytes") for size in data["segment_bytes"])
    if len(segments) != len(SEGMENT_PARTS):
        raise ValueError(f"there are {len(segments)} segments")
    processes = {
        str(role): ProcessMark(_natural(mark[0], "pid"), _natural(mark[1], "start"))
        for role, mark in dict(data.get("processes", {})).items()
    }
    return Instance(
        broker_name=name,
        generation=generation,
        kind=kind,
        segments=segments,
        segment_bytes=(control, units, readers),
        presence_key=_natural(data["presence_key"], "presence_key"),
        store_path=_text(data["store_path"], "store_path"),
        uid=_natural(data["uid"], "uid"),
        mode=_natural(data["mode"], "mode"),
        boot_id=_text(data["boot_id"], "boot_id"),
        pid_namespace=_natural(data["pid_namespace"], "pid_namespace"),
        version=_text(data["version"], "version"),
        abi=_natural(data["abi"], "abi"),
        processes=processes,
        settings=_numbers(data.get("settings", {})),
        recovery=_numbers(data.get("recovery", {})),
    )


def _numbers(table: Any) -> dict[str, int]:
    return {str(name): _natural(value, str(name)) for name, value in dict(table).items()}


def segment_names(broker_name: str, generation: int) -> tuple[str, ...]:
    """Return the POSIX names of the three segments of a generation."""
    return tuple(f"/shmq.{broker_name}.{generation:016x}.{part}" for part in SEGMENT_PARTS)


@above_standard
def read_instance(path: Path) -> Instance | None:
    """Return what instance.json describes, or None when there is no such file.

    Raises:
        SegmentError: the file is there but does not describe an instance, or is no file.
    """
    try:
        content = read_plain(path, _JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except NoPlainFile as error:
        hint = f"mv {path} {path}.aside; a broker that runs writes it again within a second"
        raise SegmentError(f"{path}: {error.strerror}", hint=hint) from error
    return Instance.from_json(content)


def store_identity(instance: Instance) -> str:
    """Return a text that is equal for two processes that see the same store directory, and differs for all others.

    It is made of the boot and the directory's inode, so that the same path on another host, or in another container,
    is another store; "" where this process does not see the directory.
    """
    try:
        status = os.stat(instance.store_path)
    except OSError:
        return ""
    import hashlib  # two milliseconds, which `health --fast` need not pay

    return hashlib.sha256(f"{boot_id()} {status.st_dev} {status.st_ino}".encode()).hexdigest()[:32]


def write_instance(path: Path, instance: Instance, *, mode: int, gid: int) -> None:
    """Replace instance.json at once, so that a reader sees the old text or the new one.

    Raises:
        StoreError: it cannot be written.
    """
    from shmq.shm.replacing import replace_text  # not needed for reading

    replace_text(path, instance.to_json(), mode=mode, gid=gid)
