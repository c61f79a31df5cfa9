"""The C core and its CPython face; only `shmq.shm` imports it.

Python that runs in a checkout imports the checkout's files, and `pip install .` builds the core beside the installed
ones only. So where no core lies beside this file, the installed package's folder is looked at too.
"""

import os
import sys


def _has_core(folder: str) -> bool:
    try:
        return any(name.startswith("_core.") and name.endswith(".so") for name in os.listdir(folder))
    except OSError:  # there is no such folder, or it lies in a zip
        return False


if not _has_core(__path__[0]):
    __path__.extend(folder for entry in sys.path if _has_core(folder := os.path.join(entry, "shmq", "bindings")))
