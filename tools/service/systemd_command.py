"""`shmq systemd`: print a unit that runs a broker under systemd.

Nothing is installed. The unit itself and docs/operations.md say what its lines are for.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from shmq import errors
from shmq.exit_code import ExitCode
from shmq.shm.place import check_broker_name
from shmq.tools.command import Call, Command, pass_call

WATCHDOG_SECONDS: Final = 30
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")

_UNIT: Final = """\
# {path}
# useradd --system --home-dir /var/lib/shmq --shell /usr/sbin/nologin {user}
# systemctl daemon-reload && systemctl enable --now {name}
[Unit]
Description=shmq broker "{broker}": messages in this host's shared memory
Documentation=man:systemd.exec(5)
After=local-fs.target network.target

[Service]
# ready when clients can attach; the watchdog is fed only while keeper and bridges really work
Type=notify
NotifyAccess=main
WatchdogSec={watchdog}
WatchdogSignal=SIGKILL
# a fixed user: DynamicUser= would imply RemoveIPC=, which deletes the segments under living clients
User={user}
Group={user}
RemoveIPC=no
Environment=SHMQ_RUNTIME_DIR=/run/shmq
RuntimeDirectory=shmq
RuntimeDirectoryMode=0755
# what is in shared memory survives a restart only if instance.json does
RuntimeDirectoryPreserve=restart
StateDirectory=shmq
StateDirectoryMode=0750
ExecStart={command}
# the supervisor stops the others in order; a large store that was not closed is read through once at the start
KillMode=mixed
TimeoutStartSec=infinity
TimeoutStopSec=120
Restart=on-failure
RestartSec=1
UMask=0077
LimitNOFILE=65536
LimitMEMLOCK=infinity
# core files would hold messages
LimitCORE=0
OOMScoreAdjust=-500
# clients share /dev/shm, semaphores and pids with the broker: no PrivateIPC=, PrivateUsers=, ProtectProc=, ProcSubset=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


@click.command(cls=Command)
@click.option("--name", default="default", show_default=True, help="The broker's name.")
@click.option("--user", default="shmq", show_default=True, help="Fixed system user, and group, it runs as.")
@click.option("--program", help="The shmq program.  [the one that runs now]")
@click.argument("options", nargs=-1, metavar="[-- OPTIONS OF shmq serve]")
@pass_call
def systemd(call: Call, /, name: str, user: str, program: str | None, options: tuple[str, ...]) -> int:
    """Print a systemd unit for a broker.

    \b
    shmq systemd -- --metrics 9557 --flush sync > /etc/systemd/system/shmq.service
    """
    check_broker_name(name)
    if not _USER.fullmatch(user):
        raise errors.UsageError(f"{user!r} names no system user", hint="--user shmq")
    unit = "shmq" if name == "default" else f"shmq-{name}"
    path = f"/etc/systemd/system/{unit}.service"
    words = [*_program(program), "serve", "--name", name, "--store", f"/var/lib/shmq/{name}", "--log-format", "json"]
    command = " ".join(_quoted(word) for word in (*words, *options))
    text = _UNIT.format(path=path, user=user, name=unit, broker=name, watchdog=WATCHDOG_SECONDS, command=command)
    if call.terminal.structured:
        call.terminal.document({"path": path, "unit": text})
    else:
        click.echo(text, nl=False)
    return ExitCode.DONE


def _program(given: str | None) -> list[str]:
    """The words that run shmq: systemd wants the first to be an absolute path."""
    if given is not None:
        if not Path(given).is_absolute():
            raise errors.UsageError(f"{given!r} is no absolute path", hint="--program /usr/local/bin/shmq")
        return [given]
    beside = Path(sys.executable).with_name("shmq")
    found = str(beside) if beside.exists() else shutil.which("shmq")
    return [found] if found else [sys.executable, "-P", "-m", "shmq"]


def _quoted(word: str) -> str:
    """A word as systemd reads it back; % and $ mean something there."""
    if _PLAIN.fullmatch(word):
        return word
    if any(character in word for character in "\n\r\0"):
        raise errors.UsageError(f"{word!r} cannot stand in a unit")
    for character, text in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(character, text)
    return f'"{word}"'
