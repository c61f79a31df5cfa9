"""Loaded by every Python that has this folder on PYTHONPATH: replaces text in modules when they are imported.

SEEDED_MUTANT holds a JSON object: module name -> list of [old, new]; each old text must stand in the module once.
"""

import json
import os
from importlib.machinery import SourceFileLoader

_EDITS = json.loads(os.environ.get("SEEDED_MUTANT", "{}"))
_get_code = SourceFileLoader.get_code


def _edited(self, fullname):  # type: ignore[no-untyped-def]
    if fullname not in _EDITS:
        return _get_code(self, fullname)
    path = self.get_filename(fullname)
    text = self.get_data(path).decode()
    for old, new in _EDITS[fullname]:
        if text.count(old) != 1:
            raise ImportError(f"{fullname} must hold this text once: {old!r}")
        text = text.replace(old, new)
    return compile(text, path, "exec", dont_inherit=True)


if _EDITS:
    SourceFileLoader.get_code = _edited  # type: ignore[method-assign]
