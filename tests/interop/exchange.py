"""Owns the form of the differential test: steps of one scripted exchange, and what is compared of their replies.

It does not know which broker is asked, nor the script itself (script.py).

    step       a request: code, fields, body, to the broker or its name server
    outcome    what came back, with everything removed that two right brokers may say differently
    silence    no reply within a second: the outcome of a one-way request, and of what a server ignores

(1) The script runs from its first to its last step on one connection for each server, because steps build on another.
(2) Fields named shmq… are for our own clients; others ignore fields they do not know, and so does the comparison.
(3) Names that the brokers choose themselves are written "{broker}", "{address}", … in the script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.deadline import attempts
from tests.interop.peers.wire import Frame, Wire, encode
from tests.interop.target import Target

SILENCE_TIMEOUT = 1.0
TIMEOUT = 12.0
MESSAGE_ID = re.compile(r"\b[0-9A-F]{32}\b")
MILLISECONDS = re.compile(r"\b1[6-9]\d{11}\b|(?<=\"timestamp\":)\d+")
CLIENT_ADDRESS = re.compile(r"/?127\.0\.0\.1:\d+")
INDEX_STATE = re.compile(r"^indexLastUpdate")  # how far the index is, which is a matter of time
ONE_WAY = 2
OUR_FIELDS = "shmq"


@dataclass(frozen=True)
class Step:
    """One request of the script.

    Attributes:
        to: "broker" or "names".
        keeps_remark: compare the remark, because clients or people read it.
        may_be_silent: wait only a second, as no reply is a right reply.
        until: a field and its value; the request is repeated until it has that, because a stock broker lets a message
            be seen a moment after it acknowledged it.
        extra: top-level keys of the JSON header; None leaves one out.
    """

    name: str
    code: int
    fields: dict[str, Any] | None = None
    body: bytes = b""
    to: str = "broker"
    keeps_remark: bool = False
    may_be_silent: bool = False
    until: tuple[str, str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a broker answered; `how` is "reply", "silence" or "close"."""

    how: str
    code: int | None = None
    remark: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    body_keys: tuple[str, ...] = ()
    has_body: bool = False


def differences(theirs: Outcome, ours: Outcome) -> list[str]:
    """Say what a client could notice; names that only our bodies have are not among it."""
    found = []
    if (theirs.how, theirs.code) != (ours.how, ours.code):
        found.append(f"stock: {theirs.how} {theirs.code}, ours: {ours.how} {ours.code} {ours.remark or ''}")
    elif theirs.remark != ours.remark:
        found.append(f"remark, stock: {theirs.remark!r}, ours: {ours.remark!r}")
    if theirs.fields != ours.fields:
        found.append(f"fields, stock: {dict(theirs.fields)}, ours: {dict(ours.fields)}")
    missing = sorted(set(theirs.body_keys) - set(ours.body_keys))
    if missing:
        found.append(f"the body lacks {missing}")
    if theirs.has_body != ours.has_body:
        found.append(f"a body, stock: {theirs.has_body}, ours: {ours.has_body}")
    return found


def play(target: Target, script: Sequence[Step]) -> dict[str, Outcome]:
    """Run a script against a broker and return the outcome of every step."""
    known = {
        "{broker}": target.broker_name,
        "{address}": target.broker_address,
        "{names}": target.name_server,
        "{port}": target.broker_address.split(":")[1],
    }
    wires: dict[str, Wire] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        for step in script:
            if step.to not in wires:
                wires[step.to] = Wire(target.broker_address if step.to == "broker" else target.name_server, TIMEOUT)
            outcomes[step.name] = _ask_until(wires[step.to], step, known)
            if outcomes[step.name].how == "close":
                wires.pop(step.to).close()
    finally:
        for wire in wires.values():
            wire.close()
    return outcomes


def _ask_until(wire: Wire, step: Step, known: dict[str, str]) -> Outcome:
    for _ in attempts(TIMEOUT):
        outcome = _ask(wire, step, known)
        if step.until is None or step.until in outcome.fields:
            break
    return outcome


def _ask(wire: Wire, step: Step, known: dict[str, str]) -> Outcome:
    fields = json.loads(_with(json.dumps(step.fields), known))
    body = _with(step.body.decode("latin-1"), known).encode("latin-1")
    extra = dict(step.extra)
    flag = extra.pop("flag", 0)
    wire.limit(SILENCE_TIMEOUT if step.may_be_silent else TIMEOUT)
    opaque = wire.next_opaque()
    try:
        wire.send(encode(step.code, opaque, fields, body, flag=flag, **extra))
        frame = wire.reply_to(opaque)
    except TimeoutError:
        return Outcome("silence")
    except ConnectionError:
        return Outcome("close")
    return Outcome("close") if frame is None else _outcome(frame, step, known)


def _outcome(frame: Frame, step: Step, known: dict[str, str]) -> Outcome:
    def clean(text: str) -> str:
        for mark, value in known.items():
            text = text.replace(value, mark) if value else text
        return CLIENT_ADDRESS.sub("<client>", MILLISECONDS.sub("<time>", MESSAGE_ID.sub("<id>", text)))

    remark = None if frame.remark is None or not step.keeps_remark else clean(frame.remark)
    theirs = [(name, value) for name, value in frame.fields.items() if not name.startswith(OUR_FIELDS)]
    fields = tuple(sorted((name, "" if INDEX_STATE.match(name) else clean(value)) for name, value in theirs))
    return Outcome("reply", frame.code, remark, fields, _top_keys(frame.body), bool(frame.body))


def _top_keys(body: bytes) -> tuple[str, ...]:
    """Names in the outermost object of a body, if it is one in either JSON dialect."""
    if not body.startswith(b"{"):
        return ()
    names, depth, index, text = [], 0, 0, body.decode(errors="replace")
    while index < len(text):
        if text[index] == '"':
            end = index + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            if depth == 1 and text[end + 1 : end + 2] == ":":
                names.append(text[index + 1 : end])
            index = end
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text[index], 0)
        index += 1
    return tuple(sorted(names))


def _with(text: str, known: dict[str, str]) -> str:
    for mark, value in known.items():
        text = text.replace(mark, value)
    return text
