"""Places of a broker on this host: its name, runtime directory, store directory and URL.

    runtime directory   $SHMQ_RUNTIME_DIR/<name>   else root: /run/shmq/<name>
                        else $XDG_RUNTIME_DIR/shmq/<name>   else /tmp/shmq-<uid>/<name>
    store directory     $SHMQ_STORE                else root: /var/lib/shmq/<name>
                        else ~/.local/share/shmq/<name>
    URL                 shmq://NAME   shmq:///absolute/runtime/directory   $SHMQ_URL when none is given

Rules: (1) a name is a file name, part of a segment name and of a semaphore name, so it is checked before it is one;
(2) a socket path longer than the kernel takes is refused here, not by a later bind;
(3) a runtime directory that another user owns or may write into is refused: replacing the socket would impersonate
the broker.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from shmq.errors import InvalidName, PermissionDenied, UsageError
from shmq.shm.descriptors import above_standard

DEFAULT_BROKER_NAME = "default"
BROKER_NAME_BYTES_MAX = 64
SOCKET_PATH_BYTES_MAX = 107  # sun_path without its terminating zero
STORE_PATH_BYTES_MAX = 1023  # of the segments' head (shmq.h), without its terminating zero
_SHOWN_CHARACTERS = 200

DEFAULT_ALLOCATION = "average"
SYSTEM_RUNTIME = Path("/run/shmq")

_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_ALPHABET = _LETTERS | frozenset("_.-")
_MARKS = "%?#"  # of a URL; the percent sign first, as it stands for the others
_SERVER = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"


class Place(NamedTuple):
    """The runtime directory of one broker and what lies in it."""

    broker_name: str
    runtime_dir: Path
    allocation: str = DEFAULT_ALLOCATION

    @property
    def url(self) -> str:
        """The URL that leads here, whatever the environment says."""
        path = str(self.runtime_dir)
        for character in _MARKS:
            path = path.replace(character, f"%{ord(character):02X}")
        if self.allocation == DEFAULT_ALLOCATION:
            return f"shmq://{path}"
        from urllib.parse import quote

        return f"shmq://{path}?allocation={quote(self.allocation)}"

    @property
    def secret_url(self) -> str:
        """The same: there is no secret in it."""
        return self.url

    @property
    def socket_path(self) -> Path:
        """The Unix stream socket of the control plane."""
        return self.runtime_dir / "control.sock"

    @property
    def instance_path(self) -> Path:
        """The description of the living (or last) segments."""
        return self.runtime_dir / "instance.json"

    @property
    def addresses_path(self) -> Path:
        """The file with the broker's TCP addresses."""
        return self.runtime_dir / "tcp.json"

    @property
    def metrics_path(self) -> Path:
        """The file with its exporter's address, if it has one."""
        return self.runtime_dir / "metrics.json"

    @property
    def ha_path(self) -> Path:
        """The file with the address at which it ships its log to slaves, if it does."""
        return self.runtime_dir / "ha.json"

    @property
    def links_path(self) -> Path:
        """Its slaves, or its master, and how far they are, if it has any."""
        return self.runtime_dir / "links.json"

    @property
    def switch_path(self) -> Path:
        """The Unix socket for the commands that make it the master, or a slave."""
        return self.runtime_dir / "switch.sock"

    @property
    def roster_path(self) -> Path:
        """The file with the broker's connections and the members of its groups."""
        return self.runtime_dir / "roster.json"


def check_broker_name(name: str) -> str:
    """Return `name` when it may name a broker.

    Raises:
        InvalidName: wrong alphabet, empty, or too long.
    """
    if not _is_broker_name(name):
        raise InvalidName(
            f"broker name {name!r} is not 1 to {BROKER_NAME_BYTES_MAX} characters of A-Z a-z 0-9 _ . - "
            "beginning with a letter or digit",
            hint="shmq serve --name my-broker",
        )
    return name


def _is_broker_name(name: str) -> bool:
    return 0 < len(name) <= BROKER_NAME_BYTES_MAX and name[0] in _LETTERS and _ALPHABET.issuperset(name)


def _runtime_root() -> Path:
    configured = os.environ.get("SHMQ_RUNTIME_DIR")
    if configured:
        return absolute_path(configured)
    if os.geteuid() == 0:
        return SYSTEM_RUNTIME
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        return Path(session) / "shmq"
    return Path(f"/tmp/shmq-{os.geteuid()}")


def own_runtime(name: str) -> Path:
    """Return the runtime directory in which this user would start a broker of this name."""
    return _runtime_root() / name


def checked(place: Place) -> Place:
    """Return a place whose socket can be made and found.

    Raises:
        UsageError: its path is too long for a socket, or no text, or no URL leads there.
    """
    hint = "name another directory: SHMQ_RUNTIME_DIR, or shmq serve --runtime-dir"
    _check_path("socket", place.socket_path, SOCKET_PATH_BYTES_MAX, hint)
    if not _is_broker_name(place.runtime_dir.name):
        raise UsageError(
            f"no URL leads to the runtime directory {str(place.runtime_dir)!a}: its last part has to be a broker's "
            f"name, 1 to {BROKER_NAME_BYTES_MAX} of A-Z a-z 0-9 _ . -",
            hint=hint,
        )
    return place


def check_store_path(path: Path) -> Path:
    """Return the path of a store directory that the segments can name.

    Raises:
        UsageError: it is too long, or no text.
    """
    _check_path("store", path, STORE_PATH_BYTES_MAX, "name another directory: shmq serve --store")
    return path


def _check_path(what: str, path: Path, bytes_max: int, hint: str) -> None:
    raw = os.fsencode(path)
    shown = f"{str(path)[:_SHOWN_CHARACTERS]!a}{'…' if len(str(path)) > _SHOWN_CHARACTERS else ''}"
    if len(raw) > bytes_max:
        raise UsageError(f"the {what} path {shown} has {len(raw)} bytes, {bytes_max} are possible", hint=hint)
    if not is_text(str(path)) or b"\0" in raw:
        raise UsageError(f"the {what} path {shown} is not UTF-8 text", hint=hint)


def is_text(word: str) -> bool:
    """Say whether UTF-8 has every character of a word; what the command line did not give as UTF-8 has surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def absolute_path(named: str) -> Path:
    """Return the path that a user named; ~ is what it is for a shell, which does not see words of files and variables.

    Raises:
        UsageError: it begins with ~, and there is no such home.
    """
    try:
        return Path(named).expanduser().absolute()
    except RuntimeError as error:
        raise UsageError(f"{named!r} names a home directory that there is not", hint="name it from / on") from error


def home_directory() -> Path | None:
    """Return the user's home, None where neither $HOME nor the table of users names one, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def place_of(url: str | None = None) -> Place:
    """Return the place a URL names.

    Args:
        url: `shmq://NAME`, `shmq:///absolute/runtime/directory`, or None for $SHMQ_URL and then the default broker;
            `?allocation=…` behind it says how members of a group share queues.

    Raises:
        UsageError: another scheme, or parts that no local broker has.
        InvalidName: the name cannot name a broker.
    """
    text = url or os.environ.get("SHMQ_URL") or f"shmq://{DEFAULT_BROKER_NAME}"
    scheme, _, rest = text.partition("://")
    if scheme.lower() != "shmq" or "#" in rest:
        raise UsageError(f"{shown_url(text)!r} does not name a local broker", hint=_meant(text))
    address, _, query = rest.partition("?")
    allocation = _allocation(text, query)
    host, slash, path = address.partition("/")
    host, path = _unquoted(host), _unquoted(slash + path)
    if host and path in ("", "/"):
        return checked(Place(check_broker_name(host), own_runtime(host), allocation))
    if not host and path.startswith("/") and path != "/":
        directory = Path(os.path.normpath(path))
        return checked(Place(check_broker_name(directory.name), directory, allocation))
    raise UsageError(
        f"{shown_url(text)!r} does not name a local broker", hint="shmq://NAME or shmq:///runtime/directory"
    )


def shown_url(url: str) -> str:
    """Return the part of a URL that may be shown: neither options nor a name and a password before the host."""
    return re.sub(r"(^|//).*@", r"\1…@", url.partition("?")[0], flags=re.DOTALL)


def _meant(text: str) -> str:
    """Return the hint for a URL that is none."""
    address = text.removeprefix("tcp://")
    if re.fullmatch(rf"{_SERVER}([,;]{_SERVER})*", address):
        servers = address.replace(";", ",")  # the separator of RocketMQ's own lists
        return f"did you mean rocketmq://{servers}? Or shmq://NAME for a broker of this host"
    if text.startswith("/"):
        return f"did you mean shmq://{text}?"
    if _LETTERS.issuperset(text[:1]) and _ALPHABET.issuperset(text):
        return f"did you mean shmq://{text}?"
    return "shmq://NAME or shmq:///runtime/directory"


def _unquoted(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)


def _allocation(text: str, query: str) -> str:
    """The one option of a local URL; whether there is such a rule is the client's to say."""
    if not query:
        return DEFAULT_ALLOCATION
    from urllib.parse import parse_qs

    options = parse_qs(query, keep_blank_values=True)
    values = options.pop("allocation", [])
    if options or len(values) != 1:
        raise UsageError(
            f"{shown_url(text)!r} has an option that no local broker has", hint="shmq://NAME?allocation=circle"
        )
    return values[0]


def default_store(name: str) -> Path:
    """Return the store directory of a broker that was given none.

    Raises:
        UsageError: this user has no home.
    """
    check_broker_name(name)
    configured = os.environ.get("SHMQ_STORE")
    if configured:
        return absolute_path(configured)
    if os.geteuid() == 0:
        return Path("/var/lib/shmq") / name
    home = home_directory()
    if home is None:
        raise UsageError(
            f"user {os.geteuid()} has no home directory: neither $HOME nor the table of users names one",
            hint="shmq serve --store DIRECTORY, or set SHMQ_STORE",
        )
    return home / ".local/share/shmq" / name


def prepare_runtime(place: Place, *, mode: int, gid: int) -> None:
    """Create the runtime directory, whatever the umask, and make sure that no other user can write into it.

    Args:
        mode: mode of the directory itself; parents that have to be created get 0755.
        gid: group of the directory, -1 to leave it.

    Raises:
        PermissionDenied: the directory or its parent is a link, or another user owns it or may write into it.
    """
    parent = place.runtime_dir.parent
    for missing in reversed([directory for directory in (parent, *parent.parents) if not directory.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)
    _refuse_foreign(parent, sticky_allowed=True)
    place.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    _refuse_foreign(place.runtime_dir, sticky_allowed=False)
    with above_standard:
        descriptor = os.open(place.runtime_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _refuse_foreign(directory: Path, *, sticky_allowed: bool) -> None:
    status = os.lstat(directory)
    what = ""
    sticky = bool(status.st_mode & stat.S_ISVTX) and sticky_allowed
    if not stat.S_ISDIR(status.st_mode):
        what = "is not a directory"
    elif status.st_uid not in (os.geteuid(), 0):
        what = f"belongs to uid {status.st_uid}, not to uid {os.geteuid()}"
    elif status.st_mode & stat.S_IWOTH and not sticky:
        what = f"has mode {stat.S_IMODE(status.st_mode):04o}, so all users may write into it"
    if what:
        raise PermissionDenied(
            f"the runtime directory {directory} {what}",
            hint=f"remove it, or set SHMQ_RUNTIME_DIR to a directory of your own (now {directory})",
        )
