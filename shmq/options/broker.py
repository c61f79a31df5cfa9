"""The options of a broker: their table, and one frozen object of them for each of its processes.

`shmq serve`, its configuration file, `shmq config`, the checks and the reference page take names, types, defaults,
ranges and help from the fields of `Options` (`row.py`); their order is that of the help.

Rules: (1) an object that exists is valid; (2) it travels between our processes as JSON on their command lines, so it
holds nothing secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from shmq.addresses import parse_address, parse_target
from shmq.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from shmq.errors import UsageError
from shmq.options.row import internal, named_rows, option, rows_of, settings_in
from shmq.shm.place import (
    DEFAULT_BROKER_NAME,
    Place,
    check_broker_name,
    check_store_path,
    checked,
    default_store,
    place_of,
)
from shmq.store.commitlog import FILE_BYTES_MIN, FILE_BYTES_MULTIPLE
from shmq.store.lineage.log_range import parse_ranges
from shmq.timing import MAX_DELAY_SECONDS

COMMAND_LINE = "command line"  # where a setting comes from
_PORT_MAX = 65535
_HOUR_MAX = 23
_LEADER_BYTES_MAX = 263  # what has room in the segments: SHMQ_LEADER_BYTES_MAX
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,110}")  # the broker makes topics of this name


def parse_networks(text: str) -> list[IPv4Network | IPv6Network]:
    """Return the networks of "CIDR;CIDR".

    Raises:
        UsageError: one of them is none.
    """
    try:
        return [ip_network(part.strip()) for part in text.replace(",", ";").split(";") if part.strip()]
    except ValueError as error:
        raise UsageError(f"ha_allow: {error}", hint='--ha-allow "10.0.0.5/32;10.1.0.0/24"') from error


@dataclass(frozen=True)
class Options:
    """Settings of one broker.

    Attributes:
        lease_ms: how long a stopped process may hold a lock in shared memory.
        clock: for tests; "movable": local clients may move the broker's clock ahead; "frozen": nothing else moves it.
        clock_ms: where a frozen one stands at first, in ms since the epoch; 0 is the time of the start.
        group_role: the role that was configured, of an elected broker; as_switched tells it.
        origins: where settings come from that are no defaults, by their names here: a file's path, or "command line".
    """

    broker_name: str = option(
        DEFAULT_BROKER_NAME,
        "The broker's name; its URL is shmq://NAME.",
        name="name",
        shown=f"default: {DEFAULT_BROKER_NAME}",
    )
    store: str = option("", "Store directory.", value="DIRECTORY", shown="by name")
    runtime_dir: str = option("", "Directory of the socket.", value="DIRECTORY", shown="by name")
    file_bytes: int = option(1 << 30, "Size of one CommitLog file.", name="file-size", value="SIZE")
    flush: str = option("async", "sync: a send returns when it is on disk.", choices=("async", "sync"))
    retention_hours: int = option(72, "Delete log files older than that.", value="HOURS", within=(1, 24 * 3650))
    delete_hour: str = option("", "Hours of the day at which those go, 0 to 23.", value="HOUR;…", shown="any")
    when_full: str = option(
        "delete-consumed", "What a full disk may cost.", choices=("refuse", "delete-consumed", "delete-oldest")
    )
    disk_warn_percent: int = option(75, "Warn, and give empty files back.", within=(1, 100))
    disk_force_percent: int = option(85, "Do what --when-full says.", within=(1, 100))
    disk_refuse_percent: int = option(90, "Store nothing above that.", within=(1, 100))
    accept_loss: str = option("", "Start without this range of the log, as the refusal told it.", value="BEGIN-END")
    verify_reads: str = option("on", "off: leave out records' checksums.", choices=("on", "off"))
    segments: str = option("posix", "sysv where /dev/shm is too small.", choices=("posix", "sysv"))
    auto_create: bool = option(True, "A topic must be created before it is used.", name="no-auto-create")
    default_queues: int = option(8, "Queues of a topic created on first use.", within=(1, 1024))
    delay_levels: str = option(
        DEFAULT_DELAY_LEVELS, "RocketMQ's messageDelayLevel.", value="LEVELS", shown='"1s 5s … 2h"'
    )
    timer_max_delay_seconds: int = option(
        MAX_DELAY_SECONDS,
        "Longest delay=.",
        name="timer-max-delay",
        value="SECONDS",
        shown="3 days",
        within=(1, 86_400 * 3650),
    )
    tcp: bool = option(True, "Serve processes of this host only.", name="no-tcp")
    # The VIP port is two below. Port 0: any, and no VIP port.
    listen: str = option("127.0.0.1:10911", "Where RocketMQ clients connect.", value="HOST:PORT")
    nameserver_listen: str = option("127.0.0.1:9876", "Where they look topics up.", value="HOST:PORT")
    nameservers: str = option(
        "",
        "Register there, and be none unless --nameserver-listen is one of them.",
        name="nameserver",
        value="HOST:PORT;…",
    )
    nameserver_ca: str = option("", "TLS there: whom to trust, PEM.", value="FILE")
    advertise: str = option("", "The address clients connect to.", value="HOST[:PORT]", shown="what they reached")
    cluster: str = option("DefaultCluster", "Name of the cluster.")
    bridges: int = option(1, "Processes that serve TCP.", within=(1, 64))
    tcp_connections_max: int = option(0, "TCP connections.", value="N", shown="by ulimit -n", within=(1, 65536))
    address_connections_max: int = option(0, "Of one address.", value="N", shown="a share of them", within=(1, 65536))
    insecure: bool = option(False, "Listen beyond loopback without access control.")
    acl: str = option("", "plain_acl.yml: who may do what.", value="FILE")
    tls_cert: str = option("", "Certificate, PEM.", value="FILE")
    tls_key: str = option("", "Its key, PEM.", value="FILE")
    tls_mode: str = option("disabled", "Who must use TLS.", choices=("disabled", "permissive", "enforcing"))
    metrics: str = option("", "Serve OpenMetrics over HTTP, on loopback.", value="[HOST:]PORT", shown="no")
    role: str = option(
        "master",
        "slave: copy the log of --master; sync-master: acknowledge what slaves have.",
        choices=("master", "sync-master", "slave"),
    )
    in_sync_min: int = option(1, "Disks that must have a message of a sync-master, its own too.", within=(1, 2))
    # RocketMQ's slaveReadEnable; there the distance is 40 % of the host's memory.
    slave_reads_bytes: int = option(
        0,
        "Readers so far behind are sent to a slave.",
        name="slave-reads",
        value="SIZE",
        shown="no",
        within=(0, 1 << 50),
    )
    master: str = option("", "The broker a slave copies.", value="HOST:PORT")
    master_ha: str = option("", "Where that ships its log.", value="HOST:PORT", shown="its port + 1")  # as in RocketMQ
    # RocketMQ's brokerId while it is a slave: of several, each has another.
    slave_id: int = option(1, "Its id at name servers, as a slave.", value="N", within=(1, 1 << 31))
    ha_listen: str = option("", "Ship the log to slaves on other hosts.", value="HOST:PORT", shown="no")
    # With a secret, those of stock peers only.
    ha_allow: str = option("", "Which addresses they may have; without --acl loopback, too.", value="CIDR;…")
    ha_secret_file: str = option("", "Both ends prove to know it.", value="FILE")
    # Then `role` says what the elected one is.
    etcd: str = option("", "Elect the master of this name over etcd.", value="URL;…", shown="no")
    etcd_ca: str = option("", "Whom to trust there, PEM.", value="FILE")
    etcd_cert: str = option("", "What to show there, PEM.", value="FILE")
    etcd_key: str = option("", "Its key, PEM.", value="FILE")
    flush_interval_ms: int = option(
        500, "Longest time between two flushes.", name="flush-interval", value="TIME", within=(10, 60_000)
    )
    unit_memory_bytes: int = option(
        64 << 20, "Queue units kept in memory.", name="unit-memory", value="SIZE", within=(4 << 20, 1 << 36)
    )
    populate_bytes: int = option(
        16 << 20, "Log made present ahead of writers.", name="populate", value="SIZE", within=(0, 1 << 30)
    )
    # The most of each table keeps every product of the segment layout far from overflow.
    topic_max: int = option(16384, "Topics there can be.", value="N", within=(16, 1 << 20))
    queue_max: int = option(131072, "Queues of all topics together.", value="N", within=(16, 1 << 22))
    frame_max: int = option(262144, "Frames of 204 queue units in memory.", value="N", within=(2048, 1 << 24))
    client_max: int = option(1024, "Local processes that send or read at a time.", value="N", within=(4, 65536))
    group_max: int = option(4096, "Consumer groups there can be.", value="N", within=(4, 65536))
    offset_max: int = option(262144, "Offsets of groups on queues.", value="N", within=(16, 1 << 24))
    log_format: str = option("text", "Form of the events on stderr.", choices=("text", "json"))
    lease_ms: int = internal(2000, within=(100, 600_000))
    clock: str = internal("host", choices=("host", "movable", "frozen"))
    clock_ms: int = internal(0, within=(0, 1 << 45))
    group_role: str = internal("")
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_broker_name(self.broker_name)
        DelayLevels(self.delay_levels)
        parse_ranges(self.accept_loss)
        for row in rows_of(self):
            row.check(getattr(self, row.field))
        if (
            type(self.file_bytes) is not int
            or self.file_bytes < FILE_BYTES_MIN
            or self.file_bytes % FILE_BYTES_MULTIPLE
        ):
            raise UsageError(
                f"file_bytes is {self.file_bytes!r}, it has to be a multiple of {FILE_BYTES_MULTIPLE} "
                f"and at least {FILE_BYTES_MIN}",
                hint="--file-size 1G is RocketMQ's size",
            )
        if not all(hour.strip().isdecimal() and int(hour) <= _HOUR_MAX for hour in self._delete_hour_texts):
            raise UsageError(
                f"delete_hour is {self.delete_hour!r}, hours from 0 to {_HOUR_MAX} are needed",
                hint='--delete-hour 4, or --delete-hour "4;16"',
            )
        if self.disk_warn_percent > self.disk_force_percent:
            raise UsageError(
                f"disk_warn_percent {self.disk_warn_percent} and disk_force_percent {self.disk_force_percent} "
                "have to rise and lie between 1 and 100"
            )
        self._check_network()
        self._check_role()
        if self.runtime_dir:
            checked(self.place)
        if self.store:
            check_store_path(self.store_path)

    def _check_network(self) -> None:
        for name in ("listen", "nameserver_listen"):
            parse_address(getattr(self, name), name=name)
        if self.metrics:
            parse_address(self.metrics, name="metrics")
        for address in self.nameserver_addresses:
            parse_target(address, name="nameservers")
        if self.advertise:
            parse_target(self.advertise, name="advertise", port=_PORT_MAX)
        if not _CLUSTER.fullmatch(self.cluster):
            raise UsageError(f"cluster is {self.cluster!r}, 1 to 110 characters of A-Z a-z 0-9 _ - are needed")
        if self.nameserver_ca and not self.nameserver_addresses:
            raise UsageError("nameserver_ca is for name servers elsewhere", hint="--nameserver HOST:PORT")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise UsageError("tls_cert and tls_key belong together", hint="--tls-cert FILE --tls-key FILE")
        if self.tls_mode != "disabled" and not self.tls_cert:
            raise UsageError(f"tls_mode {self.tls_mode} needs a certificate", hint="--tls-cert FILE --tls-key FILE")

    def _check_role(self) -> None:
        if self.ha_listen:
            parse_address(self.ha_listen, name="ha_listen")
        elif self.ha_allow and not self.ha_secret_file:
            # With a secret a slave names stock masters so; it keeps its settings when it is promoted.
            raise UsageError("ha_allow is for slaves, and none can connect", hint="--ha-listen HOST:PORT")
        parse_networks(self.ha_allow)
        if self.is_sync_master and not self.ha_listen:
            raise UsageError("a sync-master waits for its slaves, and none can connect", hint="--ha-listen HOST:PORT")
        if self.etcd:
            self._check_election()
        elif self.etcd_ca or self.etcd_cert or self.etcd_key:
            raise UsageError("certificates for etcd are for who elects over it", hint="--etcd URL")
        if self.in_sync_min > 1 and not self.confirms:
            raise UsageError("in_sync_min is for a master whose slaves confirm", hint="--role sync-master")
        if self.is_slave != bool(self.master) and not self.group_role:
            raise UsageError(
                "a slave has a master, and a master has none", hint="--role slave --master HOST:PORT belong together"
            )
        if self.master:
            parse_target(self.master, name="master")
            if len(self.master) > _LEADER_BYTES_MAX or not self.master.isascii():
                raise UsageError(f"master is {self.master[:64]!a}…, at most {_LEADER_BYTES_MAX} ASCII characters fit")
        if self.master_ha:
            parse_target(self.master_ha, name="master_ha")
            if not self.is_slave:
                raise UsageError("master_ha is for a slave", hint="--role slave --master HOST:PORT")

    def _check_election(self) -> None:
        """An elected broker must be reached by the others at addresses that are known beforehand."""
        if not self.group_role and (self.is_slave or self.master or self.master_ha):
            raise UsageError(
                "an elected master is not named by an option", hint="--etcd URL without --role slave and --master"
            )
        if not (self.tcp and self.ha_listen):
            raise UsageError("the other brokers could not connect", hint="--ha-listen HOST:PORT, and no --no-tcp")
        if bool(self.etcd_cert) != bool(self.etcd_key):
            raise UsageError("etcd_cert and etcd_key belong together", hint="--etcd-cert FILE --etcd-key FILE")
        for name, text in (("listen", self.listen), ("ha_listen", self.ha_listen)):
            if not parse_address(text, name=name)[1]:
                raise UsageError(
                    f"{name} is {text!r}, and the other brokers have to know the port", hint=f"{name} HOST:PORT"
                )
        if not self.advertise and ip_address(self._host_text).is_unspecified:
            raise UsageError(f"listen is {self.listen!r}, which no other host reaches", hint="--advertise HOST")

    @property
    def _host_text(self) -> str:
        """The host of `listen` as an address; a name is none that means every interface."""
        host = parse_address(self.listen)[0]
        return host if host.replace(".", "").isdecimal() or ":" in host else "127.0.0.1"

    @property
    def etcd_endpoints(self) -> tuple[str, ...]:
        """The members of etcd."""
        return tuple(part.strip() for part in self.etcd.replace(",", ";").split(";") if part.strip())

    @property
    def confirms(self) -> bool:
        """Whether this log's masters acknowledge, and show, what their slaves in sync have on their disks."""
        return self.is_sync_master or self.group_role == "sync-master"

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies the log of another."""
        return self.role == "slave"

    @property
    def broker_id(self) -> int:
        """RocketMQ's id of this broker among those of its name; 0 is the master's."""
        return self.slave_id if self.is_slave else 0

    @property
    def is_sync_master(self) -> bool:
        """Whether what this broker acknowledges is on its slaves' disks, too."""
        return self.role == "sync-master"

    @property
    def master_ha_address(self) -> tuple[str, int]:
        """The address at which the master of a slave ships its log."""
        if self.master_ha:
            return parse_address(self.master_ha, name="master_ha")
        host, port = parse_address(self.master, name="master")
        return host, port + 1

    @property
    def replicates(self) -> bool:
        """Whether this broker has to do with another host's log."""
        return self.is_slave or bool(self.ha_listen)

    @property
    def _delete_hour_texts(self) -> list[str]:
        return [part for part in self.delete_hour.replace(",", ";").split(";") if part]

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day at which expired files go; none named: any."""
        return frozenset(map(int, self._delete_hour_texts))

    @property
    def nameserver_addresses(self) -> list[str]:
        """The name servers to register with, its own too if that is one of several; [] for the embedded one alone."""
        return [part for part in self.nameservers.replace(",", ";").split(";") if part]

    @property
    def is_name_server(self) -> bool:
        """Whether the broker's process is a name server: none elsewhere is named, or it is one of those."""
        servers = [parse_target(address, name="nameservers") for address in self.nameserver_addresses]
        return not servers or parse_address(self.nameserver_listen, name="nameserver_listen") in servers

    @property
    def place(self) -> Place:
        """The broker's place."""
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
        return self.flush == "sync" or self.confirms

    @property
    def trusts_reads(self) -> bool:
        """Whether readers leave the checksums of records out by default."""
        return self.verify_reads == "off"

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
        return cls(**settings_in(cls, text))


OPTIONS = named_rows(Options)
