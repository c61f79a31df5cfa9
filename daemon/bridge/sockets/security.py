"""Protects the TCP ports of one process: accounts, TLS, and the rule about where it may listen.

The files behind both are looked at once a second and read again when they have changed.

    listens on       with accounts    with --insecure    with neither
    loopback         yes              yes                yes
    anything else    yes              yes, warned        refused

Invariants:
 1. What is in force is valid: a changed file that is wrong is reported, and the old one stays.
 2. Accounts that vanish from the disk stay in force; only a restart without the option ends them.
"""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from shmq.addresses import parse_address
from shmq.daemon.bridge.sockets.tls import ServerTls
from shmq.daemon.bridge.sockets.watched_file import WatchedFile
from shmq.daemon.logic.access.admission import Admission
from shmq.daemon.logic.access.rules import AccessRules, read_rules
from shmq.daemon.logic.access.text import read_access_text
from shmq.errors import ShmqError, UsageError
from shmq.options.broker import Options
from shmq.protocol.roster import RosterSecurity

Log = Callable[..., None]


class Security:
    """Accounts and certificate of one process.

    Attributes:
        admission: what a broker and a name server ask about every request.
        tls: None when connections are plain.
    """

    def __init__(self, *, acl: str = "", tls_mode: str = "disabled", tls_cert: str = "", tls_key: str = "") -> None:
        """Read the files.

        Raises:
            UsageError: one of them cannot be used; the hint says how to mend it.
        """
        self._file = WatchedFile(Path(acl)) if acl else None
        self.admission = Admission(self._read(self._file) if self._file else None)
        self.tls: ServerTls | None = None
        if tls_mode != "disabled":
            self.tls = ServerTls(tls_mode, certificate=Path(tls_cert), key=Path(tls_key))
        self._takes = {"access": self._take_accounts, "tls": self._take_certificate}
        self._kept: dict[str, str] = {}  # what is not taken -> why
        self._noticed = ""

    @staticmethod
    def _read(file: WatchedFile) -> AccessRules:
        data = file.read()
        try:
            return read_rules(read_access_text(data.decode()))
        except UnicodeDecodeError as error:
            raise UsageError(f"{file.path} is not UTF-8 at its byte {error.start}") from error
        except UsageError as error:
            raise UsageError(f"{file.path}: {error}", hint=error.hint or "docs/security.md shows one") from error

    def tick(self, log: Log) -> None:
        """Take changed files into force, or say why not, and what is wrong with the certificate."""
        for what, take in self._takes.items():
            try:
                if (changed := take()) is not None:
                    log(f"{what}.changed", **changed)
            except ShmqError as error:
                if self._kept.get(what) != str(error):
                    log("security.kept", reason=str(error), hint=error.hint)
                self._kept[what] = str(error)
        self.tell(log)

    def tell(self, log: Log) -> None:
        """Say what is wrong with the certificate, or will be, when that has changed: daily as its end comes near."""
        notice = self.tls.notice if self.tls is not None else ""
        if notice != self._noticed and self.tls is not None and notice:
            log("tls.notice", file=self.tls.path, reason=notice, hint="put another there: it is taken while we run")
        self._noticed = notice

    @property
    def state(self) -> RosterSecurity:
        """What is in force, for figures and health."""
        kept = "; ".join(self._kept.values())
        if self.tls is None:
            return RosterSecurity(kept=kept)
        found = self.tls.certificate
        return RosterSecurity(str(self.tls.path.absolute()), found.begins, found.ends, kept)

    def _take_accounts(self) -> dict[str, object] | None:
        if self._file is None or not self._has_news("access", self._file.has_changed()):
            return None
        self.admission.rules = self._read(self._file)
        self._kept.pop("access", None)
        return {"file": self._file.path}

    def _take_certificate(self) -> dict[str, object] | None:
        if self.tls is None or not self._has_news("tls", self.tls.has_changed()):
            return None
        self.tls.reload()
        self._kept.pop("tls", None)
        return {}

    def _has_news(self, what: str, has_changed: bool) -> bool:
        """Say whether files are to be read; what was gone is read again whatever comes back."""
        return has_changed or what in self._kept

    def check_exposure(self, hosts: Iterable[str], log: Log, *, insecure: bool) -> None:
        """Refuse to be reachable from other hosts without accounts, unless that is wanted.

        Raises:
            UsageError: it is not.
        """
        exposed = sorted({host for host in hosts if not is_loopback(host)})
        if not exposed:
            return
        shown = ", ".join(host or "every address" for host in exposed)
        if self.admission.rules is None:
            if not insecure:
                raise UsageError(
                    f"listening on {shown} without accounts: any client that reaches it could do everything",
                    hint="--acl FILE (docs/security.md shows one), or --insecure where the network is trusted",
                )
            log("security.insecure", hosts=shown, meaning="any client that reaches it may do everything")
        if self.tls is None:
            log("security.plain", hosts=shown, meaning="messages and signatures can be read on the way: --tls-mode")


def open_security(options: Options, log: Log) -> Security:
    """Read the files that protect the TCP ports, and refuse ports that nothing protects.

    Raises:
        UsageError: a file that cannot be used, or an address that others reach without accounts.
    """
    security = Security(acl=options.acl, tls_mode=options.tls_mode, tls_cert=options.tls_cert, tls_key=options.tls_key)
    if options.tcp:
        listens = [options.listen, *([options.nameserver_listen] if options.is_name_server else [])]
        hosts = [parse_address(address)[0] for address in listens]
        security.check_exposure(hosts, log, insecure=options.insecure)
    security.tell(log)
    return security


def is_loopback(host: str) -> bool:
    """Say whether a host name or address leads to this machine only, whatever it resolves to."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return bool(found) and all(_address_is_loopback(str(address[0])) for *_, address in found)


def _address_is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
