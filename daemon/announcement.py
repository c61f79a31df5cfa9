"""What `serve` prints or hands to its caller: that the broker is ready, or why it is not.

    text   for people, on stdout; errors on stderr with what to do
    json   one object on stdout, or on the descriptor the caller names:
           {"ready": true, "name": …, "pid": …, "socket": …, "store": …, "generation": …, "warm": …, "records": …}
           {"ready": false, "error": …, "kind": …, "hint": …, "exit": …}

Rule: it is announced once.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shmq.shm.addresses import registered_with
from shmq.shm.instance import Instance
from shmq.shm.place import Place
from shmq.shm.segment import SHM_DIRECTORY
from shmq.version import __version__


class Announcer:
    """Says it.

    Args:
        as_json: JSON on stdout instead of text.
        descriptor: JSON on this descriptor too, which is closed after it; -1 for none.
    """

    def __init__(self, *, as_json: bool = False, descriptor: int = -1) -> None:
        self._json = as_json
        self._descriptor = descriptor
        self._said = False

    def ready(
        self,
        place: Place,
        instance: Instance,
        keeper: dict[str, Any],
        seconds: float,
        *,
        tcp: Sequence[str] = (),
        metrics: str = "",
    ) -> None:
        """Say that clients can attach.

        Args:
            keeper: what the keeper reported.
            tcp: what is served over TCP, see `tcp_facts`.
            metrics: HOST:PORT of the exporter, "" when there is none.
            seconds: since the start.
        """
        if self._said:
            return
        self._say_json(
            {
                "ready": True,
                "name": place.broker_name,
                "pid": os.getpid(),
                "socket": str(place.socket_path),
                "store": instance.store_path,
                "generation": f"{instance.generation:016x}",
                "kind": instance.kind,
                "warm": keeper.get("warm", False),
                "records": keeper.get("records", 0),
                "damages": keeper.get("damages", []),
                "seconds": round(seconds, 3),
                "metrics": _metrics_url(metrics) or None,
            }
        )
        if not self._json:
            _print(_ready_text(place, instance, keeper, seconds, tcp, metrics), sys.stdout)
        self._said = True

    def failed(self, message: str, *, kind: str, hint: str, exit_code: int) -> None:
        """Say why the broker does not serve."""
        if self._said:
            return
        self._say_json({"ready": False, "error": message, "kind": kind, "hint": hint, "exit": exit_code})
        if not self._json:
            advice = f"\n  do    {hint}" if hint else ""
            _print(f"error: {message}   [exit {exit_code}]{advice}", sys.stderr)
        self._said = True

    def _say_json(self, message: dict[str, Any]) -> None:
        text = json.dumps(message)
        if self._json:
            _print(text, sys.stdout)
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, text.encode() + b"\n")
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _print(text: str, stream: Any) -> None:
    """A reader that went away must not end the broker."""
    with contextlib.suppress(OSError):
        print(text, file=stream, flush=True)


def tcp_facts(addresses: Mapping[str, str], *, nameservers: Sequence[str], advertise: str) -> list[str]:
    """Return what to say about TCP: addresses as the bridge wrote them, nothing where there are none."""
    if "broker" not in addresses:
        return []
    facts = [f"{addresses['broker']} broker"]
    if "nameserver" in addresses:
        facts.insert(0, f"{addresses['nameserver']} name service")
    registered = registered_with(addresses)
    servers_of: dict[str, list[str]] = {}
    for server, told in registered.items():
        servers_of.setdefault(told, []).append(server)
    facts += [f"registered as {told} with {', '.join(servers)}" for told, servers in servers_of.items()]
    missing = [server for server in nameservers if server not in registered]
    if missing:
        facts.append(f"not registered yet with {', '.join(missing)}: tried again until it answers")
    if not nameservers:  # else they hand out what was registered
        facts.append(f"advertises {advertise}" if advertise else "advertises the address clients reach")
    return facts


def _metrics_url(address: str) -> str:
    return f"http://{address}/metrics" if address else ""


def _ready_text(
    place: Place, instance: Instance, keeper: dict[str, Any], seconds: float, tcp: Sequence[str], metrics: str
) -> str:
    where = f"{SHM_DIRECTORY}/shmq.{place.broker_name}.*" if instance.kind == "posix" else "System V"
    if keeper.get("warm"):
        history = "segments were alive, clients go on"
    else:
        history = f"replayed {keeper.get('records', 0):,} messages in {keeper.get('seconds', 0.0):.1f} s"
    lines = [
        f'shmq {__version__}  broker "{place.broker_name}"  pid {os.getpid()}  uid {os.geteuid()}',
        f"  segment   {where}   generation {instance.generation:016x}",
        f"  store     {instance.store_path}   RocketMQ layout, {history}",
        f"  socket    {place.socket_path}",
        *([f"  tcp       {' · '.join(tcp)}"] if tcp else []),
        *([f"  metrics   {_metrics_url(metrics)}"] if metrics else []),
    ]
    damages = keeper.get("damages", [])
    if damages:
        lines.append(f"  damage    {len(damages)} unreadable ranges in the log, see the log lines above")
    lines.append(f'ready in {seconds:.1f} s – try:  shmq produce hello "first message"')
    return "\n".join(lines)
