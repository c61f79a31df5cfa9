"""Checks of access: modes and owners of segments, directories and the socket, the group, and what logind and
logout take away.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator

from shmq.figures.segments import SEMAPHORES, made_mode
from shmq.figures.verdict import Finding
from shmq.shm.access import WRITER_GROUP
from shmq.tools.doctor.case import Case, user_text
from shmq.tools.doctor.finding import fail, ok, warn
from shmq.tools.doctor.host import Host

_LOGIND_DIRECTORIES = ("usr/lib", "usr/local/lib", "run", "etc")  # the later one wins
_SYSTEM_UID_MAX = 999


def check_permissions(case: Case) -> Iterator[Finding]:
    """Owner and mode of the segments, and whether the caller may attach."""
    if case.instance is None:
        return
    instance, own = case.instance, [segment for segment in case.snapshot.segments if segment.state == "own"]
    wrong = [
        segment
        for segment in own
        if segment.uid != instance.uid
        or (segment.part != SEMAPHORES and segment.mode != made_mode(segment.part, instance.mode))
    ]
    for segment in wrong:
        mode = made_mode(segment.part, instance.mode)
        text = (
            f"{segment.path or segment.name} belongs to {user_text(segment.uid)} with mode {segment.mode:04o}, "
            f"the broker made it {user_text(instance.uid)} with {mode:04o}: no client attaches to it"
        )
        fix = f"chown {instance.uid} {segment.path}; chmod {mode:04o} {segment.path}; find out who changed it"
        yield fail("access.segments", text, fix, path=segment.path, uid=segment.uid, mode=segment.mode)
    if own and not wrong:
        yield _membership(instance.uid, instance.mode)


def _membership(owner: int, mode: int) -> Finding:
    text = f"permissions {mode:04o}"
    figures = {"mode": mode, "uid": owner}
    me = os.geteuid()
    if not mode & stat.S_IRWXG:
        if me in (0, owner):
            return ok("access.segments", f"{text}, only {user_text(owner)} may attach", **figures)
        fix = f"groupadd {WRITER_GROUP}; usermod -aG {WRITER_GROUP} {_name(owner)}; start the broker again"
        return warn("access.segments", f"{text}: {user_text(me)} may not attach", fix, **figures)
    try:
        group = grp.getgrnam(WRITER_GROUP)
    except KeyError:
        return warn(
            "access.segments", f"{text}, but there is no group {WRITER_GROUP}", f"groupadd {WRITER_GROUP}", **figures
        )
    if me in (0, owner) or group.gr_gid in (os.getegid(), *os.getgroups()):
        member = "" if me in (0, owner) else ", you are a member"
        return ok("access.segments", f"{text} group {WRITER_GROUP}{member}", **figures)
    joined = " (joined, but not in this login: log in again)" if _name(me) in group.gr_mem else ""
    return warn(
        "access.segments",
        f"{text} group {WRITER_GROUP}, {user_text(me)} is no member{joined}: it cannot attach",
        f"usermod -aG {WRITER_GROUP} {_name(me)}",
        **figures,
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def check_directories(case: Case) -> Iterator[Finding]:
    """Refuse write access of other users to the broker's socket, its store and its tables."""
    paths = [str(case.place.runtime_dir), case.store_path, os.path.join(case.store_path, "commitlog")]
    troubled = False
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        what = ""
        if status.st_uid not in (case.owner_uid, 0):
            what = f"belongs to {user_text(status.st_uid)}, the broker is {user_text(case.owner_uid)}"
        elif status.st_mode & stat.S_IWOTH:
            what = f"has mode {stat.S_IMODE(status.st_mode):04o}: all users may write into it"
        if what:
            troubled = True
            fix = f"chown {case.owner_uid} {path}; chmod o-w {path}"
            yield fail("access.directories", f"{path} {what}", fix, path=path, uid=status.st_uid)
    if not troubled and case.instance is not None:
        yield ok("access.directories", "runtime directory and store are writable for the broker alone", paths=paths)


def check_logind(case: Case) -> Iterator[Finding]:
    """Whether a logout takes the segments away: RemoveIPC of logind, and the runtime directory of a session."""
    uid, host = case.owner_uid, case.host
    if not host.exists("/run/systemd/system"):
        yield ok("access.logind", "no systemd here, so no logout removes segments", uid=uid)
        return
    removes = remove_ipc(host)
    figures = {"remove_ipc": removes, "uid": uid, "lingers": _lingers(host, uid)}
    if _is_system_user(host, uid):
        yield ok("access.logind", f"owner {user_text(uid)} is a system user: logind leaves its segments", **figures)
    elif removes and not figures["lingers"]:
        text = f"logind RemoveIPC=yes and the segments' owner {user_text(uid)} is a login user: logout deletes them"
        fix = "run as a system user (shmq systemd), or RemoveIPC=no in /etc/systemd/logind.conf"
        yield warn("access.logind", text, fix, **figures)
    else:
        why = "RemoveIPC=no" if not removes else "the owner lingers"
        yield ok("access.logind", f"logind leaves the segments at logout: {why}", **figures)
    if str(case.place.runtime_dir).startswith(f"/run/user/{uid}/") and not figures["lingers"]:
        text = f"the runtime directory {case.place.runtime_dir} goes with the owner's last logout"
        yield warn("access.runtime", text, f"loginctl enable-linger {_name(uid)}, or set SHMQ_RUNTIME_DIR", uid=uid)


def remove_ipc(host: Host) -> bool:
    """Return what logind does at logout: RemoveIPC of its configuration files, yes when none says anything."""
    value = "yes"
    for base in _LOGIND_DIRECTORIES:
        texts = [host.text(f"{base}/systemd/logind.conf")]
        value = _setting(texts, value)
    for base in _LOGIND_DIRECTORIES:
        value = _setting(list(host.texts(f"{base}/systemd/logind.conf.d", "*.conf")), value)
    return value.lower() in ("yes", "true", "on", "1", "y", "t")


def _setting(texts: list[str], before: str) -> str:
    for text in texts:
        for value in re.findall(r"^\s*RemoveIPC\s*=\s*(\S+)", text, re.M):
            before = value
    return before


def _is_system_user(host: Host, uid: int) -> bool:
    found = re.search(r"^SYS_UID_MAX\s+(\d+)", host.text("/etc/login.defs"), re.M)
    return uid <= (int(found[1]) if found else _SYSTEM_UID_MAX)


def _lingers(host: Host, uid: int) -> bool:
    return host.exists(f"/var/lib/systemd/linger/{_name(uid)}")
