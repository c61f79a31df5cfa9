"""`python -m shmq` is the `shmq` command.

The library may not import its tools, so the command is started the way the interpreter starts any program.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("shmq.tools", run_name="__main__", alter_sys=True)
