"""`python -m shmq` is the `shmq` command.

The library may not import its tools, so the command is started the way the interpreter starts any program.
"""

import importlib.util
import runpy
import sys

if __name__ == "__main__":
    if importlib.util.find_spec("shmq.tools") is None:
        sys.exit("a source checkout in this folder hides the installed shmq: python -P -m shmq …, or cd elsewhere")
    runpy.run_module("shmq.tools", run_name="__main__", alter_sys=True)
