"""What a broker can be told: one frozen object, checked once, handed to every process of it.

The values come from the command line, the environment or a test.

Rules: (1) an object that exists is valid; (2) it travels between our processes as JSON on their command lines, so it
holds nothing secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from shmq.delay_levels import DEFAULT_DELAY_LEVELS, DelayLevels
from shmq.errors import UsageError
from shmq.shm.addresses import host_fault
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
from shmq.store.lineage.loss import parse_ranges
from shmq.timing import MAX_DELAY_SECONDS

_CHOICES = {
    "flush": ("async", "sync"),
    "verify_reads": ("on", "off"),
    "segments": ("posix", "sysv"),
    "when_full": ("refuse", "delete-consumed", "delete-oldest"),
    "log_format": ("text", "json"),
    "tls_mode": ("disabled", "permissive", "enforcing"),
    "role": ("master", "sync-master", "slave"),
    "clock": ("host", "movable", "frozen"),
}

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
    "timer_max_delay_seconds": (1, 86_400 * 3650),
    "unit_memory_bytes": (4 << 20, 1 << 36),
    "populate_bytes": (0, 1 << 30),
    "bridges": (1, 64),
    "in_sync_min": (1, 2),
    "tcp_connections_max": (0, 65536),
    "address_connections_max": (0, 65536),
    "clock_ms": (0, 1 << 45),
}
COMMAND_LINE = "command line"  # where a setting comes from
_PORT_MAX = 65535
_HOUR_MAX = 23
_SHOWN_CHARACTERS = 100
_LEADER_BYTES_MAX = 263  # what has room in the segments: SHMQ_LEADER_BYTES_MAX
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,110}")  # the broker makes topics of this name


def parse_address(text: str, *, name: str = "address", port: int | None = None) -> tuple[str, int]:
    """Return host and port of "HOST:PORT"; an IPv6 host stands in brackets.

    Args:
        port: taken when the text names none; without it one must be there.

    Raises:
        UsageError: it is no such text.
    """
    host, colon, digits = text.rpartition(":")
    if port is not None and (not colon or text.endswith("]")):
        host, digits = text, str(port)
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else "" if ":" in host else host
    hint = "for example 127.0.0.1:10911 or [::1]:10911"
    if not host or not (digits.isascii() and digits.isdecimal()) or len(digits) > 5 or int(digits) > _PORT_MAX:
        raise UsageError(f"{name} is {_shown(text)}, HOST:PORT is needed", hint=hint)
    if fault := host_fault(host):
        raise UsageError(f"{name} is {_shown(text)}: {fault}", hint=hint)
    return host, int(digits)


def parse_target(text: str, *, name: str, port: int | None = None) -> tuple[str, int]:
    """As `parse_address`, of an address to which somebody connects: it has a port, and is not every address."""
    host, number = parse_address(text, name=name, port=port)
    if not number:
        raise UsageError(f"{name} is {_shown(text)}: nobody can connect to port 0", hint="the port that is listened on")
    if host in ("0.0.0.0", "::"):
        raise UsageError(f"{name} is {_shown(text)}, which stands for every address of a host", hint="name one of them")
    return host, number


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…, {len(text)} characters,"


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
        runtime_dir: directory of the socket and instance.json; "" takes the place of the broker's name.
        store: the store directory; "" takes the default of the broker's name.
        file_bytes: size of one CommitLog file; a store keeps the size it was made with.
        accept_loss: "BEGIN-END,…": log positions that may be missing, exactly; told by the start that was refused.
        delay_levels: RocketMQ's messageDelayLevel, delays in rising levels.
        timer_max_delay_seconds: how far ahead a message may be delivered at a time of its own.
        lease_ms: how long a stopped process may hold the append lock.
        unit_memory_bytes: queue units that stay in memory after they were written to files.
        populate_bytes: log pages made present ahead of the writers.
        retention_hours: age at which a log file goes, whether its messages were consumed or not.
        delete_hour: "HOUR;HOUR", hours of the day, 0 to 23 local time, at which expired files go; "" is any.
        disk_warn_percent: use of the disk at which it is said, expired files go at any hour, and empty ones are given
            back.
        disk_force_percent: use of the disk at which files go that have not expired, as when_full says.
        when_full: "refuse": none; "delete-consumed": those that every group has consumed; "delete-oldest": the oldest.
        clock: for tests; "movable": local clients may move the broker's clock ahead; "frozen": nothing else moves it.
        clock_ms: where a frozen one stands at first, in ms since the epoch; 0 is the time of the start.
        disk_refuse_percent: use of the disk above which nothing is stored; 100 switches that off.
        listen: HOST:PORT of the broker's main TCP port; the VIP port is two below. Port 0: any, and no VIP port.
        nameserver_listen: HOST:PORT of the embedded name server.
        nameservers: "HOST:PORT;HOST:PORT" to register with; then none is embedded.
        nameserver_ca: certificates (PEM) one of which has to vouch for those; then they are talked to over TLS.
        advertise: HOST or HOST:PORT that routes hand out; "" hands out what the client itself reached.
        bridges: processes that serve TCP connections.
        tcp_connections_max: TCP connections of one of them, 0: as many as it may have open files.
        address_connections_max: of these, how many one address may have; 0: a share.
        insecure: listen beyond loopback without access control.
        acl: path of a plain_acl.yml.
        metrics: HOST:PORT of the exporter, "" for none.
        role: "slave" copies the log of `master` and takes no messages itself; "sync-master" acknowledges and shows what
            its slaves in sync have on their disks.
        in_sync_min: disks that have to have a message of such a master, its own among them; with fewer it takes none.
        master: HOST:PORT of the master's broker.
        master_ha: HOST:PORT where it ships its log; "" is the port behind that of its broker, as in RocketMQ.
        ha_listen: HOST:PORT where slaves on other hosts get the log, "" for nowhere.
        ha_allow: "CIDR;CIDR", beside loopback the addresses of those slaves; with a secret, of stock peers only.
        ha_secret_file: path of a secret that both ends of a link prove to know, "" for none.
        etcd: "URL;URL" of the etcd over which the brokers of this name elect their master; then `role` says what the
            elected one is.
        etcd_ca: certificates (PEM) that vouch for it; "" takes those of the system.
        etcd_cert, etcd_key: what this broker shows it.
        group_role: the role that was configured, of an elected broker; as_switched tells it.
        origins: where settings come from that are no defaults, by their names here: a file's path, or "command line".
    """

    broker_name: str = DEFAULT_BROKER_NAME
    runtime_dir: str = ""
    store: str = ""
    file_bytes: int = 1 << 30
    flush: str = "async"
    verify_reads: str = "on"
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
    delay_levels: str = DEFAULT_DELAY_LEVELS
    timer_max_delay_seconds: int = MAX_DELAY_SECONDS
    retention_hours: int = 72
    delete_hour: str = ""
    when_full: str = "delete-consumed"
    disk_warn_percent: int = 75
    disk_force_percent: int = 85
    disk_refuse_percent: int = 90
    accept_loss: str = ""
    unit_memory_bytes: int = 64 << 20
    populate_bytes: int = 16 << 20
    log_format: str = "text"
    clock: str = "host"
    clock_ms: int = 0
    tcp: bool = True
    listen: str = "127.0.0.1:10911"
    nameserver_listen: str = "127.0.0.1:9876"
    nameservers: str = ""
    nameserver_ca: str = ""
    advertise: str = ""
    cluster: str = "DefaultCluster"
    bridges: int = 1
    tcp_connections_max: int = 0
    address_connections_max: int = 0
    insecure: bool = False
    acl: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_mode: str = "disabled"
    metrics: str = ""
    role: str = "master"
    in_sync_min: int = 1
    master: str = ""
    master_ha: str = ""
    ha_listen: str = ""
    ha_allow: str = ""
    ha_secret_file: str = ""
    etcd: str = ""
    etcd_ca: str = ""
    etcd_cert: str = ""
    etcd_key: str = ""
    group_role: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_broker_name(self.broker_name)
        DelayLevels(self.delay_levels)
        parse_ranges(self.accept_loss)
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
                hint="--file-size 1G is RocketMQ's size",
            )
        if not all(hour.strip().isdecimal() and int(hour) <= _HOUR_MAX for hour in self._delete_hour_texts):
            raise UsageError(
                f"delete_hour is {self.delete_hour!r}, hours from 0 to {_HOUR_MAX} are needed",
                hint='--delete-hour 4, or --delete-hour "4;16"',
            )
        if not 0 < self.disk_refuse_percent <= 100:
            raise UsageError(f"disk_refuse_percent is {self.disk_refuse_percent!r}, from 1 to 100 is possible")
        if not 0 < self.disk_warn_percent <= self.disk_force_percent <= 100:
            raise UsageError(
                f"disk_warn_percent {self.disk_warn_percent} and disk_force_percent {self.disk_force_percent} "
                "have to rise and lie between 1 and 100"
            )
        self._check_network()
        self._check_role()
        files = ("acl", "tls_cert", "tls_key", "nameserver_ca", "etcd_ca", "etcd_cert", "etcd_key", "ha_secret_file")
        for name in ("runtime_dir", "store", *files):
            if getattr(self, name) and not Path(getattr(self, name)).is_absolute():
                raise UsageError(f"{name} is {getattr(self, name)!r}, an absolute path is needed")
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
        """Who is elected is reached by the others at addresses that are known beforehand."""
        if not self.group_role and (self.is_slave or self.master or self.master_ha):
            raise UsageError(
                "who elects is not told which broker is the master", hint="--etcd URL without --role slave and --master"
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
    def is_sync_master(self) -> bool:
        """Whether what this broker acknowledges is on its slaves' disks, too."""
        return self.role == "sync-master"

    @property
    def master_ha_address(self) -> tuple[str, int]:
        """Where the master of a slave ships its log."""
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
        """The name servers to register with, [] for the embedded one."""
        return [part for part in self.nameservers.replace(",", ";").split(";") if part]

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
        return self.flush == "sync" or self.confirms

    @property
    def trusts_reads(self) -> bool:
        """Whether readers that are not told otherwise leave the checksums of records out."""
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
        try:
            data: Any = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the options are not JSON: {error}") from error
        known = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or not data.keys() <= known:
            unknown = sorted(data.keys() - known) if isinstance(data, dict) else [type(data).__name__]
            raise UsageError(f"there is no such option: {', '.join(unknown)}")
        return cls(**data)
