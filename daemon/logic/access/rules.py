"""Decides what each account may do over TCP, by the accounts of RocketMQ's plain_acl.yml.

Rules are pure data: who reads the file hands its text in, and `needs.py` says what a request needs.

    white-listed address    everything of class client and internal, unsigned
    account                 its signature has to fit, unless the account white-lists the address; then
        class client        every topic and group of the request by the account's permissions
        class admin         only with `admin: true`
        class internal      only with `admin: true`
    all others               nothing

Deliberate differences to RocketMQ 4.9: the gaps in its list of checked codes (batches, offsets, locks, transactions,
query by position) are closed; and no white list makes an administrator, because an address proves nothing about who
sits behind it.

Invariants:
 1. Rules that exist are valid; a change is a new object.
 2. A refusal names the account and the resource, never a secret.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shmq.daemon.logic.access.needs import Need, needs_of
from shmq.daemon.logic.access.rights import EVERYTHING, Permission, Rights
from shmq.errors import PermissionDenied, UsageError
from shmq.message import RETRY_PREFIX, check_group, check_topic, is_waiting_topic, pop_names, retry_topic
from shmq.protocol.acl import ACCESS_KEY, is_signed
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.request_table import REQUESTS, RequestClass

KEY_CHARACTERS_MIN = 7  # RocketMQ's: names and keys are longer than six
ACCOUNTS_MAX = 10_000
_VERSION_5 = 413  # V5_0_0; older clients know a refusal by code 1 and a text
_SHOWN_MAX = 64

_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}
_ACCOUNT_KEYS = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
}  # fmt: skip
_TOP_KEYS = {"globalWhiteRemoteAddresses", "accounts", "dataVersion", "date"}
_ADDRESS = re.compile(r"[0-9A-Fa-f:.*,{}-]+")


@dataclass(frozen=True)
class Account:
    """One account; `permissions` are by resource, a group under its retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    white_addresses: tuple[str, ...] = ()
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    permissions: Mapping[str, Permission] = field(default_factory=dict)

    def permission_on(self, resource: str) -> Permission:
        """Return what this account may do with a resource; with "" what it may do with topics in general.

        The defaults do not open the topics in which messages of all other topics wait. An account that may read a group
        and a topic may read what comes again of the topic to the group.
        """
        known = self.permissions.get(resource)
        if known is not None:
            return known
        group, topic = pop_names(resource)
        if group:
            return self.permission_on(retry_topic(group)) & self.permission_on(topic) & Permission.SUB
        if is_waiting_topic(resource):
            return Permission.DENY
        return self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic


class AccessRules:
    """All accounts of one file."""

    def __init__(self, accounts: Sequence[Account], white_addresses: Sequence[str] = ()) -> None:
        self._accounts = {account.access_key: account for account in accounts}
        self._white_addresses = tuple(white_addresses)
        if len(self._accounts) < len(accounts):
            raise UsageError("two accounts have the same accessKey")
        if len(accounts) > ACCOUNTS_MAX:
            raise UsageError(f"{len(accounts)} accounts; {ACCOUNTS_MAX} are possible")

    def check(self, command: Command, remote_host: str) -> Rights:
        """Let a request pass or say why not; return what its sender may do with what the request leads to.

        Raises:
            PermissionDenied: with code 1 for a client before 5.0, else 16, as each expects it.
            ProtocolError: the body does not name what has to be judged.
        """
        code = Response.SYSTEM_ERROR if command.version < _VERSION_5 else Response.NO_PERMISSION
        try:
            account = self._check(command, remote_host)
        except PermissionDenied as error:
            error.code = code
            raise
        return EVERYTHING if account is None else Rights(account.access_key, account.permission_on, code)

    def _check(self, command: Command, remote_host: str) -> Account | None:
        """Return the account whose permissions count; None where none limits the sender."""
        request_class = REQUESTS[command.code].request_class
        if request_class is not RequestClass.ADMIN and _is_listed(remote_host, self._white_addresses):
            return None
        account = self._authenticated(command, remote_host)
        if account.is_admin:
            return None
        if request_class is not RequestClass.CLIENT:
            raise PermissionDenied(
                f"Need admin permission for request code={command.code}, but accessKey={account.access_key} is not"
            )
        for need in needs_of(command):
            _check_need(account, need)
        return account

    def _authenticated(self, command: Command, remote_host: str) -> Account:
        access_key = command.ext.get(ACCESS_KEY, "")
        if not access_key:
            raise PermissionDenied("No accessKey is configured")
        account = self._accounts.get(access_key)
        if account is None:
            raise PermissionDenied(f"No acl config for {access_key[:_SHOWN_MAX]!a}")
        trusted = _is_listed(remote_host, account.white_addresses) and not account.is_admin
        if not trusted and not is_signed(command.ext, command.body, secret_key=account.secret_key):
            raise PermissionDenied(f"Check signature failed for accessKey={access_key}")
        return account


def _check_need(account: Account, need: Need) -> None:
    if not account.permission_on(need.resource) & need.any_of:
        if need.resource.startswith(RETRY_PREFIX):
            what = f"group {need.resource.removeprefix(RETRY_PREFIX)[:_SHOWN_MAX]!a}"
        else:
            what = f"topic {need.resource[:_SHOWN_MAX]!a}" if need.resource else "messages of any topic"
        wanted = " or ".join(part.name or "" for part in Permission if part & need.any_of) or "admin"
        raise PermissionDenied(f"No permission {wanted} on {what} for accessKey={account.access_key}")


def read_rules(data: Any) -> AccessRules:
    """Return the rules of a file's value.

    Raises:
        UsageError: a name, a type or a value that RocketMQ's file does not have; no secret is in its text.
    """
    top = _map(data, "the file", _TOP_KEYS)
    accounts = [] if top.get("accounts") is None else top["accounts"]
    if not isinstance(accounts, list):
        raise UsageError("accounts is no list")
    return AccessRules(
        [_account(entry, number) for number, entry in enumerate(accounts, 1)],
        _addresses(top.get("globalWhiteRemoteAddresses") or [], "globalWhiteRemoteAddresses"),
    )


def _account(entry: Any, number: int) -> Account:
    where = f"account {number}"
    values = _map(entry, where, _ACCOUNT_KEYS)
    access_key, secret_key = values.get("accessKey"), values.get("secretKey")
    for name, value in (("accessKey", access_key), ("secretKey", secret_key)):
        if not isinstance(value, str) or len(value) < KEY_CHARACTERS_MIN:
            raise UsageError(f"{where}: {name} needs at least {KEY_CHARACTERS_MIN} characters")
    assert isinstance(access_key, str) and isinstance(secret_key, str)
    admin = values.get("admin") or "false"
    if admin not in ("true", "false"):
        raise UsageError(f"{where}: admin is true or false")
    permissions = _permissions(values.get("topicPerms"), f"{where}: topicPerms", check_topic)
    groups = _permissions(values.get("groupPerms"), f"{where}: groupPerms", check_group)
    return Account(
        access_key,
        secret_key,
        admin == "true",
        tuple(_addresses(values.get("whiteRemoteAddress") or [], f"{where}: whiteRemoteAddress")),
        _permission(values.get("defaultTopicPerm") or "DENY", f"{where}: defaultTopicPerm"),
        _permission(values.get("defaultGroupPerm") or "DENY", f"{where}: defaultGroupPerm"),
        permissions | {retry_topic(group): permission for group, permission in groups.items()},
    )


def _map(data: Any, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no map of names and values")
    unknown = sorted(set(data) - known)
    if unknown:
        raise UsageError(f"{where}: {unknown[0]} is not known", hint=f"known are {', '.join(sorted(known))}")
    return data


def _permissions(entries: Any, where: str, check: Any) -> dict[str, Permission]:
    if entries is not None and not isinstance(entries, list):
        raise UsageError(f"{where} is no list")
    found: dict[str, Permission] = {}
    for entry in entries or []:
        name, separator, text = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if not separator:
            raise UsageError(f"{where}: an entry has the form name=PUB|SUB")
        found[check(name.strip())] = _permission(text.strip(), where)
    return found


def _permission(text: Any, where: str) -> Permission:
    if not isinstance(text, str) or text not in _PERMISSIONS:
        raise UsageError(
            f"{where}: {str(text)[:_SHOWN_MAX]!a} is no permission", hint=f"one of {', '.join(_PERMISSIONS)}"
        )
    return _PERMISSIONS[text]


def _addresses(entries: Any, where: str) -> list[str]:
    patterns = [entries] if isinstance(entries, str) else entries
    if not isinstance(patterns, list):
        raise UsageError(f"{where} is no list of addresses")
    for pattern in patterns:
        if not isinstance(pattern, str) or not _ADDRESS.fullmatch(pattern):
            raise UsageError(f"{where}: {str(pattern)[:_SHOWN_MAX]!a} is no address", hint="192.168.0.*, 10.0.0.1-9")
    return patterns


def _is_listed(host: str, patterns: Sequence[str]) -> bool:
    return any(_matches(host, pattern) for pattern in patterns)


def _matches(host: str, pattern: str) -> bool:
    """Compare part by part: `*`, a range `1-9`, a choice `{1,2}`, or several addresses after a comma."""
    if pattern == "*":
        return True
    if "{" not in pattern and "," in pattern:
        return any(_matches(host, part) for part in pattern.split(","))
    separator = ":" if ":" in pattern else "."
    parts, wanted = host.split(separator), pattern.split(separator)
    return len(parts) == len(wanted) and all(
        _part_matches(part, want) for part, want in zip(parts, wanted, strict=True)
    )


def _part_matches(part: str, want: str) -> bool:
    if want == "*" or part.lower() == want.lower():
        return True
    if want.startswith("{") and want.endswith("}"):
        return part in want[1:-1].split(",")
    least, separator, most = want.partition("-")
    is_range = separator and all(text.isascii() and text.isdecimal() for text in (part, least, most))
    return bool(is_range) and int(least) <= int(part) <= int(most)
