"""Loaded by every Python that has this folder on PYTHONPATH: changes modules when they are imported.

SEEDED_MUTANT holds a JSON object: module name -> list of [old, new]; each old text must stand in the module once.
SEEDED_CORE is the path of the extension module that is loaded in place of `shmq.bindings._core`.
"""

import json
import os
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from importlib.util import spec_from_file_location

_EDITS = json.loads(os.environ.get("SEEDED_MUTANT", "{}"))
_CORE = os.environ.get("SEEDED_CORE", "")
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


class _CoreFinder:
    @staticmethod
    def find_spec(fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname != "shmq.bindings._core":
            return None
        return spec_from_file_location(fullname, _CORE, loader=ExtensionFileLoader(fullname, _CORE))


if _EDITS:
    SourceFileLoader.get_code = _edited  # type: ignore[method-assign]
if _CORE:
    sys.meta_path.insert(0, _CoreFinder)  # type: ignore[arg-type]
