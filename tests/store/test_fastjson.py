"""RocketMQ's JSON: integer keys without quotes."""

import json

import pytest

from shmq.store.fastjson import dumps, dumps_rows, loads

# As a running 4.9.8 prints it: one line per map entry, integer maps on one line, the brace on the next.
STOCK = '{\n\t"offsetTable":{\n\t\t"TopicTest@CG":{0:4,1:2,2:2,3:2\n\t\t},\n\t\t"%RETRY%CG@CG":{0:0\n\t\t}\n\t}\n}'


def test_unquoted_integer_keys_are_read() -> None:
    assert loads(STOCK) == {"offsetTable": {"TopicTest@CG": {"0": 4, "1": 2, "2": 2, "3": 2}, "%RETRY%CG@CG": {"0": 0}}}


@pytest.mark.parametrize("text", ['{"a,1:{2:":"{3:4}",5:"x\\",6:7"}', '{-1:"\\\\",2:"{"}'])
def test_what_only_looks_like_a_key_inside_a_string_is_left_alone(text: str) -> None:
    assert "".join(loads(text)) != ""
    for key, value in loads(text).items():
        assert key.lstrip("-").isdigit() or key == "a,1:{2:"
        assert value in ("{3:4}", 'x",6:7', "\\", "{")


@pytest.mark.parametrize("text", ["", "{", "{1:}", "{a:1}", "nonsense"])
def test_what_is_no_json_even_so_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)


def test_we_write_standard_json_in_their_shape() -> None:
    text = dumps({"offsetTable": {"T@g": {"0": 4}}})
    assert text == '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t"0":4\n\t\t}\n\t}\n}'
    assert json.loads(text) == loads(text)


def test_rows_are_json_one_entry_a_line() -> None:
    value = {"dataVersion": {}, "offsetTable": {"T@g": {0: 12, 1: 3}, "%RETRY%g@g": {0: 1}}, "other": 5}
    text = dumps_rows(value)
    assert json.loads(text)["offsetTable"] == {"T@g": {"0": 12, "1": 3}, "%RETRY%g@g": {"0": 1}}
    assert b'\n\t\t"T@g":{"0":12,"1":3},\n' in text
