"""roster.json: the connections of a broker and the members of its groups.

Health, doctor and metrics read this file instead of asking the bridge, which could not answer when it matters most.

The primary bridge writes the file (`Place.roster_path`) within a second of a change.

    {"generation": "00c0…", "written_ms": …, "connections": [{…}], "groups": {name: {…}}, "departed": [{…}],
     "popped": [{…}], "refused": [{…}], "security": {…}}

Times are milliseconds of CLOCK_MONOTONIC, which all processes of a host share and setting a clock does not move.

Rules: (1) the text comes from a file, so it is checked when it is read; (2) fields are only added.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from shmq.errors import CorruptionError
from shmq.plain_file import read_plain
from shmq.typed_json import decode_json

ROSTER_BYTES_MAX = 64 << 20


class RosterConnection(msgspec.Struct, frozen=True, omit_defaults=True):
    """One client: a process of this host (`slot` is its client slot, -1 without) or a client over TCP (`pid` 0)."""

    client_id: str
    transport: str  # "shm" or "tcp"
    since_ms: int
    pid: int = 0
    slot: int = -1
    role: int = 0
    address: str = ""
    language: str = ""
    version: str = ""
    consumer_groups: tuple[str, ...] = ()
    producer_groups: tuple[str, ...] = ()


class RosterMember(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member of a consumer group; `subscription` is topic -> (language of the expression, its terms)."""

    client_id: str
    transport: str
    pid: int = 0
    language: str = ""
    subscription: dict[str, tuple[str, tuple[str, ...]]] = {}


class RosterGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A consumer group with members."""

    model: str
    members: tuple[RosterMember, ...]
    differs_since_ms: int | None = None
    conflicts: int = 0


class RosterDeparture(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member whose connection ended before it had left its group: it died, or was cut off."""

    group: str
    at_ms: int
    member: RosterMember


class RosterPopped(msgspec.Struct, frozen=True):
    """The number of a queue's messages that members of a group have in hand and the broker hides (POP)."""

    group: str
    topic: str
    queue_id: int
    count: int


class RosterRefusal(msgspec.Struct, frozen=True):
    """A member whose subscription cannot be served, and when it said so last."""

    group: str
    client_id: str
    address: str
    reason: str
    at_ms: int


class RosterSecurity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The protection of the ports.

    Attributes:
        certificate: its file, "" without TLS; it is valid from `begins` to `ends`, seconds since the epoch.
        kept: why what was in force stays so, though a file of accounts or TLS has changed; "" where none has.
    """

    certificate: str = ""
    begins: float = 0.0
    ends: float = 0.0
    kept: str = ""


NO_SECURITY = RosterSecurity()


class Roster(msgspec.Struct, frozen=True):
    """Everything about members and connections at one moment, and what they have in hand as far as only we know."""

    generation: str
    written_ms: int
    connections: tuple[RosterConnection, ...] = ()
    groups: dict[str, RosterGroup] = {}
    departed: tuple[RosterDeparture, ...] = ()
    popped: tuple[RosterPopped, ...] = ()
    refused: tuple[RosterRefusal, ...] = ()
    security: RosterSecurity = NO_SECURITY

    @property
    def in_flight(self) -> dict[tuple[str, str, int], int]:
        """How many messages are popped and not settled, by group, topic and queue id."""
        return {(entry.group, entry.topic, entry.queue_id): entry.count for entry in self.popped}


def roster_text(roster: Roster) -> str:
    """Return the text of roster.json."""
    return msgspec.json.encode(roster).decode()


def read_roster(path: Path, generation: str) -> Roster | None:
    """Return what the broker last said about its members; None when it is of other segments, or nothing was said.

    Raises:
        CorruptionError, OSError: the file is there but cannot be read.
    """
    try:
        roster = parse_roster(read_plain(path, ROSTER_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    return roster if roster.generation == generation else None


def popped_messages(path: Path, generation: int) -> dict[tuple[str, str, int], int]:
    """Return `Roster.in_flight` as the broker last said it, up to a second ago.

    A file that cannot be read must not hide what memory shows, so it counts as nothing popped.
    """
    try:
        roster = read_roster(path, f"{generation:016x}")
    except (CorruptionError, OSError):
        return {}
    return roster.in_flight if roster is not None else {}


def parse_roster(content: bytes) -> Roster:
    """Read the text of roster.json.

    Raises:
        CorruptionError: it is no roster.
    """
    if len(content) > ROSTER_BYTES_MAX:
        raise CorruptionError("roster.json", 0, f"it has more than {ROSTER_BYTES_MAX} bytes")
    try:
        return decode_json(content, Roster)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorruptionError("roster.json", 0, str(error)) from error
