"""The part of JSON Schema that `docs/reference/json` uses; any other keyword is an error, so no rule is skipped."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/reference/json"

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    *("$schema", "title", "description", "type", "properties", "required", "items"),
    *("enum", "pattern", "minimum", "additionalProperties"),
}


def check(name: str, value: Any) -> None:
    """Raise AssertionError unless `value` is what the schema of that name describes, with no undescribed member."""
    _check(json.loads((FOLDER / f"{name}.json").read_text()), value, name)


def _check(schema: dict[str, Any], value: Any, where: str) -> None:
    assert set(schema) <= _KNOWN, f"{where}: unknown keywords {set(schema) - _KNOWN}"
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = tuple(kind for name in names for kind in _TYPES[name])
    assert isinstance(value, allowed), f"{where}: {value!r} is not {names}"
    assert not isinstance(value, bool) or "boolean" in names, f"{where}: {value!r} is not {names}"
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r} is not one of {schema['enum']}"
    if "pattern" in schema and isinstance(value, str):
        assert re.search(schema["pattern"], value), f"{where}: {value!r} does not match {schema['pattern']}"
    if "minimum" in schema and isinstance(value, int):
        assert value >= schema["minimum"], f"{where}: {value!r} is below {schema['minimum']}"
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(schema["items"], item, f"{where}[{index}]")
    if isinstance(value, dict):
        _check_members(schema, value, where)


def _check_members(schema: dict[str, Any], value: dict[str, Any], where: str) -> None:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    missing = set(schema.get("required", ())) - value.keys()
    assert not missing, f"{where}: {missing} are missing"
    for name, member in value.items():
        assert name in properties or rest, f"{where}: {name} is not described"
        _check(properties.get(name, rest), member, f"{where}.{name}")
