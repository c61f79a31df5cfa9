"""Checks of TCP: do the broker's ports answer, are they free while it does not run, where are clients sent; and
whether replication peers prove a secret."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from shmq.addresses import host_of, is_loopback_address, parse_address
from shmq.errors import UsageError
from shmq.figures.verdict import Finding
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import fail, ok, warn

CONNECT_SECONDS = 0.5
DEFAULT_PORTS = {"broker": ("127.0.0.1", 10911), "nameserver": ("127.0.0.1", 9876)}
_OPTIONS = {"broker": "--listen", "nameserver": "--nameserver-listen"}


def check_ports(case: Case) -> Iterator[Finding]:
    """Each port the broker announced takes a connection; the default ones are free when no broker runs."""
    broker = case.snapshot.broker
    announced = {"broker": broker.tcp, "nameserver": broker.nameserver}
    if not case.is_served:
        yield from _free_ports()
        return
    addresses = {what: address for what, text in announced.items() if (address := split_address(text))}
    if not addresses:
        yield ok("network.ports", "this broker serves processes of this host only, no TCP")
        return
    silent = {what: address for what, address in addresses.items() if not answers(*address)}
    for what, (host, port) in silent.items():
        text = f"the {what} port {host}:{port} takes no connection within {CONNECT_SECONDS:g} s"
        yield fail("network.ports", text, "see shmq health: the bridge may be stopped, or dead", host=host, port=port)
    if not silent:
        text = " and ".join(f"{what} {host}:{port}" for what, (host, port) in addresses.items())
        yield ok("network.ports", f"{text} take connections")


def _free_ports() -> Iterator[Finding]:
    taken = {what: address for what, address in DEFAULT_PORTS.items() if answers(*address)}
    for what, (host, port) in taken.items():
        text = f"{host}:{port} is taken by another program: a broker with default ports would not start"
        yield warn("network.ports", text, f"shmq serve {_OPTIONS[what]} {host}:PORT", host=host, port=port)
    if not taken:
        yield ok("network.ports", "the default ports 9876 and 10911 are free")


def check_advertised(case: Case) -> Iterator[Finding]:
    """The address to which routes send clients: what --advertise says has to take connections from here at least."""
    advertised = str(case.options.get("advertise", ""))
    broker = split_address(case.snapshot.broker.tcp)
    if not case.is_served or broker is None:
        return
    if not advertised:
        yield ok("network.advertised", "routes name the address that a client has reached itself")
        return
    host, port = split_address(advertised) or (advertised, broker[1])
    fix = "shmq serve --advertise HOST[:PORT], an address that every client reaches, or leave it out"
    if answers(host, port):
        yield ok("network.advertised", f"the advertised address {host}:{port} takes connections", host=host, port=port)
    else:
        text = f"the advertised address {host}:{port} takes no connection from this host"
        yield fail("network.advertised", text, fix, host=host, port=port)


def check_links(case: Case) -> Iterator[Finding]:
    """At a port for slaves of other hosts both ends prove a secret."""
    listen = str(case.options.get("ha_listen", ""))
    host = host_of(listen)
    if not case.is_served or not listen:
        return
    if case.options.get("ha_secret_file"):
        yield ok("network.links", f"who connects to {listen} proves a secret, or is named by --ha-allow")
    elif (
        (host == "localhost" or is_loopback_address(host))
        and case.options.get("acl")
        and not case.options.get("ha_allow")
    ):
        text = f"no slave is let in at {listen}: where the broker has accounts, loopback is not trusted by itself"
        yield warn("network.links", text, "shmq serve --ha-secret-file FILE, the same file for both", listen=listen)
    elif host == "localhost" or is_loopback_address(host):
        yield ok("network.links", f"only this host reaches {listen}, where the log is shipped")
    else:
        text = f"peers prove nothing at {listen}, where the log is shipped: an address of --ha-allow is enough"
        yield warn("network.links", text, "shmq serve --ha-secret-file FILE, the same file on each host", listen=listen)


def split_address(text: str) -> tuple[str, int] | None:
    """Return host and port of HOST:PORT, with a wildcard host as loopback; None when it is no address."""
    try:
        host, port = parse_address(text)
    except UsageError:
        return None
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def answers(host: str, port: int) -> bool:
    """Say whether a server takes a connection there within half a second."""
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS):
            return True
    except OSError:
        return False
