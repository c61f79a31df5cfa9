"""Types are read by any thread, the first time too."""

from __future__ import annotations

import ast
import subprocess
import sys

import msgspec
import pytest

from shmq.typed_json import convert_plain, decode_json, describe
from tests.test_layout import python_files

_FIRST_READS = """
import sys, threading
import msgspec
from shmq.client.topic import codec_of
from shmq.typed_json import convert_plain, decode_json

sys.setswitchinterval(1e-6)
for turn in range(200):
    inner = msgspec.defstruct("Inner", [(f"f{number}", int | None, None) for number in range(20)])
    fields = [(f"f{number}", int | None, None) for number in range(40)]
    outer = msgspec.defstruct("Outer", [("g", list[inner]), *fields])
    reads = [
        lambda: decode_json(b'{"f39":2,"g":[{"f1":1}]}', outer),
        lambda: convert_plain({"f39": 2, "g": [{"f1": 1}]}, outer),
        lambda: convert_plain({"f1": 1}, inner),
        lambda: codec_of("json", outer).decode(b'{"f39":2,"g":[{"f1":1}]}'),
    ]
    begin = threading.Barrier(len(reads))
    threads = [threading.Thread(target=lambda read=read: (begin.wait(), read())) for read in reads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
_READERS = {"msgspec.convert", "msgspec.json.decode", "msgspec.json.Decoder", "msgspec.msgpack.decode"}
_READERS |= {"msgspec.msgpack.Decoder"}


class Pair(msgspec.Struct):
    left: int
    right: list[int] = []


def test_threads_that_read_a_type_for_the_first_time_at_once_do_not_end_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", _FIRST_READS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_json_and_plain_values_are_read_into_types() -> None:
    assert decode_json(b'{"left":1,"right":[2]}', Pair) == Pair(1, [2])
    assert decode_json(b"[1,2]", list[int]) == [1, 2]
    assert convert_plain({"left": "1"}, Pair, strict=False) == Pair(1)
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'{"left":"1"}', Pair)
    with pytest.raises(msgspec.ValidationError):
        convert_plain({"left": "1"}, Pair)


def test_a_type_nothing_can_be_read_into_is_refused() -> None:
    with pytest.raises(TypeError):
        describe({int: "unhashable"})


def test_no_other_module_lets_msgspec_read_into_a_type() -> None:
    found = []
    texts = ((path.read_text(), module) for path, module in python_files())
    for text, module in ((text, module) for text, module in texts if "msgspec" in text):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _READERS:
                found.append(module)
    assert set(found) == {"shmq.typed_json"}
