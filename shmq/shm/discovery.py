"""Finds the broker of this host that a program means by a name, whichever user runs it.

A broker is started in its user's own runtime directory (`place.py`). A client may be another user's, and the broker a
service of the system, so a name is looked for in two places, and a broker is called as it calls itself:

    shmq://NAME              our own runtime directory, then /run/shmq/NAME; a living broker before what is left of one
    shmq:///directory        that one
    $SHMQ_RUNTIME_DIR set    only there

Rule: a directory that may not be entered counts as a broker, because the error about it says more than "none runs".
Among the others it does while its user has a segment of that name.
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

from shmq.errors import BrokerNotRunning, SegmentError
from shmq.shm.instance import Instance, read_instance
from shmq.shm.liveness import is_alive
from shmq.shm.place import SYSTEM_RUNTIME, Place, own_runtime, place_of
from shmq.shm.segment import SHM_DIRECTORY

OTHERS_MAX = 3
_OTHERS = (f"{SYSTEM_RUNTIME}/*", "/run/user/*/shmq/*", "/tmp/shmq-[0-9]*/*")


def find_place(url: str | None = None) -> Place:
    """Return the place of the broker a URL means, called as the broker calls itself.

    Raises:
        UsageError, InvalidName: the URL names no broker of this host.
    """
    return found(place_of(url))


def found(place: Place) -> Place:
    """Return where the broker of a place is, called as it calls itself; the place itself when there is none."""
    left = None
    for candidate in _candidates(place):
        instance = _instance(candidate)
        if isinstance(instance, Instance):
            named = candidate._replace(broker_name=instance.broker_name)
            if _supervisor_lives(instance):
                return named
            left = left or named
        elif instance:
            left = left or candidate
    return left or place


def is_served(place: Place) -> bool:
    """Say whether a broker's supervisor lives there: what is missing of it is being started again, or it stops."""
    instance = _instance(place)
    return isinstance(instance, Instance) and _supervisor_lives(instance)


def _supervisor_lives(instance: Instance) -> bool:
    return is_alive(instance.processes.get("supervisor"))


def none_runs(place: Place) -> BrokerNotRunning:
    """Return the error that no broker was found: where was looked, and what to type."""
    where = " and ".join(str(candidate.runtime_dir) for candidate in _candidates(place))
    verb = "have" if " and " in where else "has"
    name = "" if place.broker_name == "default" else f" --name {place.broker_name}"
    return BrokerNotRunning(
        f'no broker "{place.broker_name}" runs on this host ({where} {verb} none){others_text(place)}',
        hint=f"shmq serve{name}",
    )


def others_text(place: Place) -> str:
    """Return words that name brokers which do run, for the error about one that does not; "" when there are none."""
    found_urls = []
    for directory in sorted(Path(path) for pattern in _OTHERS for path in glob.iglob(pattern)):
        instance = _instance(Place("", directory))
        if isinstance(instance, Instance) and _supervisor_lives(instance):
            found_urls.append(f"shmq://{directory}")
        elif instance is True and (uid := _owner_of_a_segment(directory)) is not None:
            found_urls.append(f"shmq://{directory} of uid {uid}")
    return f"; others do: {', '.join(found_urls[:OTHERS_MAX])}" if found_urls else ""


def _owner_of_a_segment(directory: Path) -> int | None:
    """Return whose a runtime directory is that may not be entered, if a segment of its name is the same user's."""
    with contextlib.suppress(OSError):
        owner = directory.stat().st_uid
        segments = SHM_DIRECTORY.glob(f"shmq.{glob.escape(directory.name)}.*.control")
        if any(path.stat().st_uid == owner for path in segments):
            return owner
    return None


def _candidates(place: Place) -> list[Place]:
    elsewhere = SYSTEM_RUNTIME / place.broker_name
    is_own = place.runtime_dir == own_runtime(place.broker_name) and not os.environ.get("SHMQ_RUNTIME_DIR")
    return [place, place._replace(runtime_dir=elsewhere)] if is_own and elsewhere != place.runtime_dir else [place]


def _instance(place: Place) -> Instance | bool | None:
    """Return what is described there; True when it cannot be read, None when there is nothing."""
    try:
        return read_instance(place.instance_path)
    except NotADirectoryError:
        return None
    except (OSError, SegmentError):
        return True
