"""Keys and values: kept before they are visible, bounded, and answered in RocketMQ's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from shmq.daemon.nameserver.key_values import KeyValues, Table
from shmq.daemon.nameserver.kv_file import KeyValueFile
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.errors import CorruptionError, StoreError
from shmq.protocol.codes import Request, Response
from shmq.shm.access import Access
from tests.nameserver.desk import Desk

FIELDS = {"namespace": "n", "key": "k", "value": "v"}


class MemoryKeeper:
    """Keeps in memory, unless its disk is full."""

    def __init__(self, table: Table | None = None) -> None:
        self.kept: Table = table or {}
        self.is_full = False

    def load(self) -> Table:
        return self.kept

    def save(self, table: Mapping[str, Mapping[str, str]]) -> None:
        if self.is_full:
            raise StoreError("the disk is full")
        self.kept = {space: dict(values) for space, values in table.items()}


def test_a_value_is_put_read_listed_and_deleted(desk: Desk) -> None:
    admin = desk.connect()
    assert desk.ask(admin, Request.PUT_KV_CONFIG, FIELDS).code == Response.SUCCESS
    assert desk.ask(admin, Request.GET_KV_CONFIG, FIELDS).ext == {"value": "v"}
    assert desk.ask(admin, Request.GET_KVLIST_BY_NAMESPACE, FIELDS).body == b'{"table":{"k":"v"}}'
    for _ in range(2):
        assert desk.ask(admin, Request.DELETE_KV_CONFIG, FIELDS).code == Response.SUCCESS
    absent = desk.ask(admin, Request.GET_KV_CONFIG, FIELDS)
    assert (absent.code, absent.remark) == (Response.QUERY_NOT_FOUND, "No config item, Namespace: n Key: k")
    empty = desk.ask(admin, Request.GET_KVLIST_BY_NAMESPACE, FIELDS)
    assert (empty.code, empty.remark) == (Response.QUERY_NOT_FOUND, "No config item, Namespace: n")


def test_what_cannot_be_kept_is_not_visible() -> None:
    keeper = MemoryKeeper({"n": {"old": "1"}})
    desk = Desk(keeper=keeper)
    admin = desk.connect()
    keeper.is_full = True
    for code, key in ((Request.PUT_KV_CONFIG, "k"), (Request.DELETE_KV_CONFIG, "old")):
        reply = desk.ask(admin, code, FIELDS | {"key": key})
        assert (reply.code, reply.remark) == (Response.SERVICE_NOT_AVAILABLE, "the disk is full")
    listed = desk.ask(admin, Request.GET_KVLIST_BY_NAMESPACE, FIELDS)
    assert json.loads(listed.body) == {"table": {"old": "1"}}


def test_an_empty_namespace_is_not_kept() -> None:
    keeper = MemoryKeeper()
    values = KeyValues(keeper, NameServerSettings())
    values.put("n", "k", "v")
    values.delete("n", "k")
    assert keeper.kept == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "x" * 256},
        {"namespace": "x" * 256},
        {"value": "x" * 33},  # longer than one value may be
        {"key": "third"},  # one more than there may be
        {"key": "second", "value": "x" * 30},  # too much together
    ],
)
def test_everything_is_bounded(fields: dict[str, str]) -> None:
    desk = Desk(NameServerSettings(kv_entries_max=2, kv_bytes_max=30, kv_value_bytes_max=32))
    admin = desk.connect()
    for key in ("first", "second"):
        assert desk.ask(admin, Request.PUT_KV_CONFIG, FIELDS | {"key": key}).code == Response.SUCCESS
    reply = desk.ask(admin, Request.PUT_KV_CONFIG, FIELDS | fields)
    assert reply.code == Response.MESSAGE_ILLEGAL and "allowed" in (reply.remark or "")
    assert json.loads(desk.ask(admin, Request.GET_KVLIST_BY_NAMESPACE, FIELDS).body)["table"].keys() == {
        "first",
        "second",
    }


def test_a_file_is_read_again_and_from_its_backup_when_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    file = KeyValueFile(path, Access(-1))
    assert file.load() == {}
    file.save({"n": {"k": "1"}})
    file.save({"n": {"k": "2"}})
    assert file.load() == {"n": {"k": "2"}}
    for damage in ("{", "[]", '{"configTable":{"n":{"k":1}}}', '{"configTable":[]}', "\udcff"):
        path.write_bytes(damage.encode(errors="surrogateescape"))
        assert file.load() == {"n": {"k": "1"}}
    path.with_name("kvConfig.json.bak").write_text("{")
    with pytest.raises(CorruptionError, match="unreadable, and so is its backup"):
        file.load()


def test_rocketmqs_own_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{\n\t\t\t"T":"broker-a:4"\n\t\t}\n\t}\n}')
    assert KeyValueFile(path, Access(-1)).load() == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}


def test_a_file_that_cannot_be_written_is_an_error_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        KeyValueFile(tmp_path / "file" / "kvConfig.json", Access(-1)).save({"n": {"k": "v"}})
    assert str(tmp_path) not in str(caught.value)
