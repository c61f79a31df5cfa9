"""The types of one look at a broker: plain figures, none of them judged.

    Snapshot
      broker      who it is, whether it serves, why it takes no appends       from instance.json and the control segment
      processes   every process that takes part, by pid and start time        instance.json, client slots, psutil
      presence    the kernel's own count of attached processes                SEM_UNDO semaphore
      segments    of this broker and of others, those of dead ones marked     /dev/shm, SysV
      memory      /dev/shm and control group limits                           statvfs, cgroup
      log         ends, spare files, how far flush and dispatch are behind    control segment, mark files
      lock, claim who holds them, since when                                  control segment
      disk        room, and the marks of this broker                          statvfs, instance.json
      clients     attached connections                                        readers segment, roster.json
      topics, groups                                                          control and readers segments, roster.json
      replication slaves, or the master, of a broker that has any             links.json
      refused     members whose subscription cannot be served                 roster.json
      recovery    what the last one found                                     instance.json
      scrub       what the checks in the background found                     shmq.scrub in the store
      counted     lost lines of the broker's log, faults of its own           counters segment
      faults      what could not be read, and why

The types are named tuples whose annotations are not postponed: twenty data classes, or every annotation compiled once
more, would take `health --fast` a quarter of its time.

Rules: (1) `None` is "cannot be known from here", never zero; (2) sizes in bytes, times in seconds, ages count back from
`at`; (3) a part that cannot be read is a fault, and takes no other part with it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shmq.figures.changed_files import ChangedFile


class Fault(NamedTuple):
    """Something that could not be read; `kind` is the error's class name."""

    what: str
    kind: str
    error: str
    hint: str


class Broker(NamedTuple):
    """The broker's identity, and whether it is served."""

    name: str
    url: str
    runtime_dir: str
    store_path: str
    generation: str  # 16 hexadecimal digits
    kind: str  # "posix" or "sysv"
    version: str
    abi: int
    uid: int
    mode: int
    served: bool  # the supervisor lives
    flush_sync: bool | None
    retired: bool | None
    read_only: int | None  # enum shmq_read_only_reason
    read_only_text: str
    keeper_beat_age: float | None
    tcp: str  # HOST:PORT, "" without
    nameserver: str
    quarantined: int = 0  # copies of damaged records, not removed yet


class Process(NamedTuple):
    """One process that takes part.

    `role` is supervisor, keeper, bridge, bridge-N or client; `state` running, sleeping, disk, stopped, frozen, hidden
    (/proc does not show it to this user), zombie or dead. USS, PSS and mappings only in a deep look; None where /proc
    is closed to us.
    """

    pid: int
    start: int  # field 22 of /proc/<pid>/stat
    role: str
    state: str
    alive: bool
    name: str = ""
    user: str = ""
    uid: int | None = None
    age: float | None = None
    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    uss_bytes: int | None = None
    pss_bytes: int | None = None
    fds: int | None = None
    threads: int | None = None
    mappings: int | None = None
    client_ids: tuple[str, ...] = ()


class Presence(NamedTuple):
    """The kernel's count of attached processes, and ours; None where the semaphore is not there or not readable."""

    counted: int | None
    registered: int  # living processes that instance.json (but for the exporter) and the client slots name


class Segment(NamedTuple):
    """One shared memory segment; `used_bytes` is what it really takes."""

    name: str
    path: str  # "" for SysV
    part: str  # control, units, readers, or "semaphores" for all of a generation
    broker: str
    generation: str
    size_bytes: int
    used_bytes: int
    uid: int
    mode: int
    state: str  # "own", or what shmq.shm.leftovers says: living, foreign, unjudged, waiting, mapped, dead
    reason: str = ""  # how that is known


class Memory(NamedTuple):
    """Limits on shared memory; a limit of None is none."""

    shm_bytes: int
    shm_free_bytes: int
    cgroup: str
    cgroup_limit_bytes: int | None
    cgroup_used_bytes: int | None
    cgroup_reclaimable_bytes: int | None  # of these: pages of files that were not used lately

    @property
    def shm_used_percent(self) -> float:
        """How full /dev/shm is."""
        return 100 * (self.shm_bytes - self.shm_free_bytes) / self.shm_bytes if self.shm_bytes else 0.0

    @property
    def cgroup_needed_bytes(self) -> int | None:
        """Bytes that the control group cannot give back; None without a limit."""
        if not self.cgroup_limit_bytes or self.cgroup_used_bytes is None:
            return None
        return max(0, self.cgroup_used_bytes - (self.cgroup_reclaimable_bytes or 0))


class Log(NamedTuple):
    """The log: positions are bytes since the log began."""

    begin: int
    end: int
    durable_end: int
    allocated_end: int
    file_bytes: int
    files: int
    spare_files: int
    flush_behind_bytes: int
    dispatch_behind_bytes: int | None  # log end minus what the ConsumeQueue files are known to hold
    index_behind_bytes: int | None
    units_behind: int  # units in memory that no file has yet
    appended: int
    appended_bytes: int
    busy: int  # callers that gave up at their deadline
    deaths: int  # lock holders that died
    frames_used: int
    resident_bytes: int | None = None  # in the page cache, of examined_bytes; only in a deep look
    examined_bytes: int | None = None
    queues_taken: int = 0  # of queues_max
    queues_max: int = 0
    replicas_in_sync: int | None = None  # of a synchronous master
    unconfirmed_bytes: int = 0  # in its log and not on the disks of its slaves in sync


class Lock(NamedTuple):
    """The append lock, held at this moment. `held` is how long we have seen it so: it may be longer, never shorter."""

    tid: int
    pid: int | None
    start: int
    name: str
    state: str
    held: float


class Claim(NamedTuple):
    """The open claim: a region of the log that one process fills outside the lock."""

    pid: int
    start: int
    alive: bool
    state: str
    size_bytes: int
    age: float


class Disk(NamedTuple):
    """The disk that holds the store, and at how much of it what happens."""

    path: str
    size_bytes: int
    used_bytes: int
    free_bytes: int
    used_percent: int
    warn_percent: int
    force_percent: int
    refuse_percent: int
    writable: bool


class Client(NamedTuple):
    """One attached connection of a local process, or one client over TCP (slot None)."""

    client_id: str
    slot: int | None
    pid: int | None
    start: int
    alive: bool
    transport: str  # "shm" or "tcp"
    address: str
    language: str
    version: str
    role: str
    received: int | None
    sent: int | None
    in_hand: int | None  # of received: neither acknowledged nor given back
    idle: float | None  # since its last poll or send
    asleep: bool | None
    consumer_groups: tuple[str, ...]
    producer_groups: tuple[str, ...]


class Topic(NamedTuple):
    """One topic; `size_bytes` of all records ever stored in its queues, `messages` of what can still be read."""

    name: str
    role: str
    perm: int
    queues: int
    messages: int
    stored: int  # messages ever stored since the topic was made
    size_bytes: int


class QueueProgress(NamedTuple):
    """Progress of a group in one queue; `committed` None: never set."""

    topic: str
    queue_id: int
    offset_min: int
    offset_max: int
    committed: int | None
    lag: int
    ready: int | None
    owner_pid: int | None
    idle: float | None  # since the offset moved
    in_flight: int = 0  # of the lag: taken by members, hidden by the broker until they settle it (POP)
    lost: int = 0  # deleted by cleaning before the group had acknowledged them; never part of the lag
    lost_age: float | None = None  # since it was counted last; None where only the offsets tell


class Member(NamedTuple):
    """One member of a group, as it subscribed."""

    client_id: str
    transport: str
    language: str
    pid: int | None
    alive: bool
    subscription: Mapping[str, str]


class Departure(NamedTuple):
    """A member that ended without leaving its group."""

    client_id: str
    pid: int | None
    transport: str
    age: float


class Refusal(NamedTuple):
    """A member whose subscription the broker cannot serve; its group may not exist."""

    group: str
    client_id: str
    address: str
    reason: str
    age: float  # since it said so last


class Group(NamedTuple):
    """One consumer group.

    `ready` counts the messages of the lag that its subscription selects; None when its subscription is unknown.
    It is exact unless `ready_exact` says otherwise: behind the scan bound every message is taken for a match.
    """

    name: str
    model: str
    lag: int
    ready: int | None
    ready_exact: bool
    oldest: float | None  # age of the oldest message not consumed
    members: tuple[Member, ...]
    queues: tuple[QueueProgress, ...]
    differs: float | None  # seconds since its members subscribe differently, None while they agree
    conflicts: int
    departed: tuple[Departure, ...]
    in_flight: int = 0  # of the lag: taken by members, hidden by the broker until they settle it (POP)


class Recovery(NamedTuple):
    """The recovery that filled these segments."""

    age: float
    seconds: float
    clean: bool
    records: int
    queues: int
    zeroed_bytes: int
    damages: int
    units_repaired: int = 0
    tables_restored: int = 0
    marks_restored: int = 0
    entries_ignored: int = 0
    restored_files: tuple[str, ...] = ()
    ignored_files: tuple[str, ...] = ()
    foreign_files: int = 0
    lost_messages: int = 0
    damaged_messages: int = 0


class Scrub(NamedTuple):
    """The findings of the checks in the background, in the pass that is under way or in the last one."""

    age: float | None  # seconds since a pass ended
    checked_bytes: int
    damages: int
    units_rebuilt: int
    tables_rewritten: int
    indexes_rebuilt: int = 0


class Counted(NamedTuple):
    """The counts of keeper and bridges since the segments were made; ages of the latest, None without."""

    log_lines_dropped: int
    log_lines_dropped_age: float | None
    internal_errors: int
    internal_errors_age: float | None
    files: "tuple[ChangedFile, ...]" = ()


class Replica(NamedTuple):
    """One slave that is connected; `shmq.shm.links` says what its states mean."""

    address: str
    kind: str
    state: str
    age: float  # of the connection
    acknowledged: int | None
    flushed: int | None
    lag_bytes: int | None
    lag_ms: int | None
    store: str = ""  # the identity of its store; "" of a stock slave


class LostReplica(NamedTuple):
    """A slave that has gone or was refused."""

    address: str
    reason: str
    cure: str
    age: float
    times: int


class Master(NamedTuple):
    """The master of a slave; the lags are as of when it was heard last."""

    address: str
    kind: str
    state: str
    age: float | None  # since it is followed without a break; None while it is not
    heard_age: float | None
    lag_bytes: int | None
    lag_ms: int | None
    error: str
    cure: str
    error_age: float | None


class Election(NamedTuple):
    """The election of the master of this broker's name, as this broker sees it."""

    role: str  # waiting, following, campaigning, leading or finished
    store: str  # this broker's, as the others know it
    leader: str  # the store of the leader; empty: none
    in_sync: tuple[str, ...]  # the stores that can be elected
    lease_age: float | None  # seconds since a leader's lease was renewed for the last time
    reason: str  # why it waits, or is fenced
    why: str  # how the epoch began


class Replication(NamedTuple):
    """The links of a broker to other hosts."""

    role: str
    age: float  # since this was reported
    replicas: tuple[Replica, ...]
    gone: tuple[LostReplica, ...]
    refused: tuple[LostReplica, ...]
    master: Master | None
    epoch: int = 0
    standing: str = "leads"  # or "follows", "fenced"
    leader: str = ""  # the broker that takes messages, where this one does not and knows it
    election: Election | None = None
    standing_age: float | None = None  # since standing or epoch changed, or since its process began to look


class Security(NamedTuple):
    """Protection of the TCP ports; of a broker without TLS `certificate` is "". Times are seconds since the epoch."""

    certificate: str
    begins: float
    ends: float
    kept: str  # why changed files of accounts or TLS are not taken, "" where none are


class Snapshot(NamedTuple):
    """One look at one broker."""

    at: float  # seconds since the epoch
    broker: Broker
    processes: tuple[Process, ...]
    presence: Presence
    segments: tuple[Segment, ...]
    memory: Memory | None
    log: Log | None
    lock: Lock | None
    claim: Claim | None
    disk: Disk | None
    clients: tuple[Client, ...]
    topics: tuple[Topic, ...]
    groups: tuple[Group, ...]
    recovery: Recovery | None
    faults: tuple[Fault, ...]
    scrub: Scrub | None = None
    refused: tuple[Refusal, ...] = ()
    replication: Replication | None = None
    counted: Counted | None = None
    security: Security | None = None

    def document(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists, as JSON carries it."""
        document: dict[str, Any] = plain(self)
        return document

    def process(self, role: str) -> Process | None:
        """Return the process of a role, None when none is recorded."""
        return next((process for process in self.processes if process.role == role), None)

    def group(self, name: str) -> Group | None:
        """Return a group by name."""
        return next((group for group in self.groups if group.name == name), None)

    def topic(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return next((topic for topic in self.topics if topic.name == name), None)


def plain(value: Any) -> Any:
    """Return a part of a snapshot as dicts, lists and plain values."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is None:
            return [plain(item) for item in value]
        return {name: plain(item) for name, item in zip(names, value, strict=True)}
    return dict(value) if isinstance(value, Mapping) else value
