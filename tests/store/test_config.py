"""The config directory: RocketMQ's tables, kept whole, and never silently empty."""

import json
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import CorruptionError
from shmq.shm.access import Access
from shmq.store.config import ConfigFiles, TopicRecord
from shmq.store.layout import StoreLayout
from shmq.store.table_entries import DELAY_KEY, MARK_KEYS
from shmq.timing import TIMER_GROUPS, TIMER_TOPIC


class Directory:
    """A config directory and the events of reading it."""

    def __init__(self, root: Path) -> None:
        self.layout = StoreLayout(root, Access(-1))
        self.layout.prepare()
        self.events: list[str] = []
        self.path = self.layout.config

    def open(self) -> ConfigFiles:
        return ConfigFiles(self.layout, log=lambda event, **_: self.events.append(event))

    def text(self, name: str) -> Any:
        return json.loads((self.path / name).read_text())


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "store")


def test_what_a_stock_broker_wrote_is_read_and_its_other_fields_are_kept(directory: Directory) -> None:
    (directory.path / "topics.json").write_text(
        '{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":17},\n\t"topicConfigTable":{\n\t\t"T":{"attributes":'
        '{"message.type":"FIFO"},"order":true,"perm":4,"readQueueNums":4,"topicFilterType":"MULTI_TAG","topicName":"T",'
        '"topicSysFlag":1,"writeQueueNums":2}\n\t}\n}'
    )
    config = directory.open()
    tables = config.load()
    topic = tables.topics["T"]
    assert (topic.read_queues, topic.write_queues, topic.perm, topic.flags, topic.kind) == (4, 2, 4, 1, 1)
    topic.perm = 6
    assert config.save_topics(tables.topics, {})
    written = directory.text("topics.json")
    assert written["topicConfigTable"]["T"] == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "MULTI_TAG",
        "topicName": "T",
        "topicSysFlag": 1,
        "writeQueueNums": 2,
    }
    assert written["dataVersion"]["counter"] == 4
    assert written["dataVersion"]["stateVersion"] == 0


def test_what_rocketmq_has_no_field_for_is_in_our_own_file(directory: Directory) -> None:
    config = directory.open()
    config.load()
    config.save_topics({"T": TopicRecord("T", 8, 8, kind=2, born=77)}, {"gone": 12})
    assert set(directory.text("topics.json")["topicConfigTable"]["T"]) == {
        "order",
        "perm",
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    }
    tables = directory.open().load()
    assert (tables.topics["T"].kind, tables.topics["T"].born, tables.deleted) == (2, 77, {"gone": 12})


def test_groups_and_offsets_come_back_as_they_were(directory: Directory) -> None:
    config = directory.open()
    config.load()
    groups = {"g": {"groupName": "g", "retryMaxTimes": 3}}
    offsets = {("T", "g"): {0: 250, 7: 1}, ("%RETRY%g", "g"): {0: 3}}
    assert config.save_groups(groups)
    assert config.save_offsets(offsets)
    tables = directory.open().load()
    assert (tables.groups, tables.offsets) == (groups, offsets)
    assert directory.text("consumerOffset.json")["offsetTable"]["T@g"] == {"0": 250, "7": 1}


def test_an_offset_that_is_older_than_its_topic_says_nothing(directory: Directory) -> None:
    config = directory.open()
    config.load()
    topics = {
        name: TopicRecord(name, 8, 8, born=born) for name, born in (("kept", 99), ("made again", 100), ("new", 100))
    }
    offsets = {(name, "g"): {0: 6} for name in ("kept", "made again", "gone", "never seen")} | {("new", "g"): {0: 0}}
    config.save_topics(topics, {"gone": 90})
    config.save_offsets(offsets, 100)
    assert set(directory.open().load().offsets) == {("kept", "g"), ("never seen", "g"), ("new", "g")}
    config.save_offsets(offsets | {("kept", "g"): {0: 7}})  # nothing says when these were read, as in RocketMQ's file
    assert set(directory.open().load().offsets) == offsets.keys() - {("gone", "g")}


def test_nothing_is_written_when_nothing_changed(directory: Directory) -> None:
    config = directory.open()
    config.load()
    topics = {"T": TopicRecord("T", 8, 8)}
    assert config.save_topics(topics, {})
    before = {path.name: path.stat().st_ino for path in directory.path.iterdir()}
    assert not config.save_topics(topics, {})
    other = directory.open()
    other.load()
    assert not other.save_topics(topics, {})
    assert {path.name: path.stat().st_ino for path in directory.path.iterdir()} == before


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"offsetTable":5}', b"\xff\xfe", b'{"offsetTable":{'])
def test_an_unreadable_table_is_read_from_its_backup_and_said(directory: Directory, damage: bytes) -> None:
    config = directory.open()
    config.load()
    config.save_offsets({("T", "g"): {0: 1}})
    config.save_offsets({("T", "g"): {0: 2}})
    (directory.path / "consumerOffset.json").write_bytes(damage)
    assert directory.open().load().offsets == {("T", "g"): {0: 1}}
    assert directory.events == ["config.unreadable", "config.from_backup"]


def test_no_changed_bit_gives_other_numbers(directory: Directory) -> None:
    config = directory.open()
    config.load()
    older, newer = {("T", "g"): {0: 100, 1: 7}}, {("T", "g"): {0: 300, 1: 7}}
    config.save_offsets(older)
    config.save_offsets(newer)
    path = directory.path / "consumerOffset.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            offsets = directory.open().load().offsets
            assert offsets in (older, newer), (at, bit, offsets)
            assert offsets == older and "config.unreadable" in directory.events
            directory.events.clear()


def test_the_first_content_of_a_table_has_a_backup_too(directory: Directory) -> None:
    config = directory.open()
    config.load()
    config.save_offsets({("T", "g"): {0: 1}})
    (directory.path / "consumerOffset.json").write_bytes(b"{")
    config = directory.open()
    assert config.load().offsets == {("T", "g"): {0: 1}}
    config.discard("consumerOffset.json")
    config.save_offsets({("T", "g"): {0: 1}})
    config.discard("consumerOffset.json.bak")
    assert config.save_offsets({("T", "g"): {0: 1}})
    assert config.find_damaged() == [] and (directory.path / "consumerOffset.json.bak").exists()


@pytest.mark.parametrize("words", [[], [7], [7, -1, 0, 0], [7, 8, 9, "8"]])
def test_progress_of_timers_that_lacks_a_word_is_not_believed(directory: Directory, words: list[Any]) -> None:
    config = directory.open()
    config.load()
    whole = {(TIMER_TOPIC, group): {0: 5 + number} for number, group in enumerate(TIMER_GROUPS)}
    config.save_delays(whole)
    table = dict(zip(TIMER_GROUPS, words, strict=False))
    (directory.path / "timerProgress.json").write_text(json.dumps({"timerProgress": table}))
    assert directory.open().load().offsets == (whole if words else {})
    assert ("config.from_backup" in directory.events) == bool(words)


def test_what_cleaning_took_is_kept(directory: Directory) -> None:
    config = directory.open()
    assert config.load().losses == {} and not config.save_losses({})
    losses = {("T", "g"): {0: (17, 1_700_000_000), 3: (1, 5)}}
    assert config.save_losses(losses) and not config.save_losses(losses)
    assert directory.open().load().losses == losses


def test_a_file_that_a_stock_broker_wrote_meanwhile_is_believed(directory: Directory) -> None:
    config = directory.open()
    config.load()
    config.save_offsets({("T", "g"): {0: 1}})
    (directory.path / "consumerOffset.json").write_text('{\n\t"offsetTable":{"T@g":{0:9}}\n}')
    config = directory.open()
    assert config.load().offsets == {("T", "g"): {0: 9}}
    assert directory.events == []
    config.save_offsets({("T", "g"): {0: 10}})
    assert directory.text("consumerOffset.json")["offsetTable"] == {"T@g": {"0": 10}}


def test_a_missing_table_is_read_from_its_backup(directory: Directory) -> None:
    config = directory.open()
    config.load()
    config.save_offsets({("T", "g"): {0: 1}})
    config.save_offsets({("T", "g"): {0: 2}})
    (directory.path / "consumerOffset.json").unlink()
    assert directory.open().load().offsets == {("T", "g"): {0: 1}}


def test_after_an_orderly_stop_a_backup_is_as_new_as_its_table_and_a_file_of_its_own(directory: Directory) -> None:
    config = directory.open()
    config.load()
    path, backup = config.copies("consumerOffset.json")
    config.save_offsets({("T", "g"): {0: 1}})
    config.save_offsets({("T", "g"): {0: 2}})
    config.save_backups()
    with path.open("ab") as file:
        file.write(b"more")
    assert directory.open().load().offsets == {("T", "g"): {0: 2}}
    before = backup.read_bytes()
    config.save_backups()
    assert backup.read_bytes() == before, "a table that another program has written says nothing"
    path.unlink()
    config.save_backups()
    assert directory.open().load().offsets == {("T", "g"): {0: 2}}


def test_offsets_never_silently_begin_at_zero(directory: Directory) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (directory.path / name).write_text("{")
    with pytest.raises(CorruptionError, match=r"consumerOffset\.json"):
        directory.open().load()


def test_a_new_store_has_empty_tables(directory: Directory) -> None:
    tables = directory.open().load()
    assert (tables.topics, tables.groups, tables.offsets, tables.deleted) == ({}, {}, {}, {})


def test_entries_that_are_not_what_they_should_be_are_left_out(directory: Directory) -> None:
    (directory.path / "consumerOffset.json").write_text(
        '{"offsetTable":{"T@g":{0:5,"1":-3,"x":4,"2":"7"},"nogroup":{"0":1},"T@h":7}}'
    )
    (directory.path / "topics.json").write_text('{"topicConfigTable":{"A":7,"B":{"readQueueNums":"many"}}}')
    tables = directory.open().load()
    assert tables.offsets == {("T", "g"): {0: 5}}
    assert (list(tables.topics), tables.topics["B"].read_queues) == (["B"], 8)
    assert directory.events == ["config.entry_ignored"] * 7


def test_forgotten_progress_calls_nothing_delivered_and_says_where_copies_are_looked_for(directory: Directory) -> None:
    words = {(TIMER_TOPIC, group): {0: 7} for group in TIMER_GROUPS}
    config = directory.open()
    assert config.save_delays({DELAY_KEY: {0: 5, 3: 9}, **words, **{key: {0: 4000} for key in MARK_KEYS}})
    config.forget_progress(212)
    found = directory.open().load().offsets
    assert found[DELAY_KEY] == {0: 0, 3: 0}
    assert all(found[key] == {0: 0} for key in words) and all(found[key] == {0: 212} for key in MARK_KEYS)


@pytest.mark.parametrize("name", ["topics.json", "shmq.json"])
def test_lives_that_are_forgotten_make_no_empty_table_where_one_is_missing(directory: Directory, name: str) -> None:
    config = directory.open()
    config.load()
    config.save_topics({"T": TopicRecord("T", 8, 8, born=90)}, {"gone": 95})
    config.save_offsets({("T", "g"): {0: 1}}, 99)
    for path in config.copies(name):
        path.unlink()
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    directory.open().forget_lives(80)
    found = {path.name: path.read_bytes() for path in directory.path.iterdir() if "Offset" not in path.name}
    assert found == {each: content for each, content in before.items() if "Offset" not in each}
    again = directory.open()
    again.load()
    with pytest.raises(CorruptionError, match=name):
        again.check_missing(config.written)
