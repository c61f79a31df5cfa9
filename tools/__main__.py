"""`python -m shmq.tools` is the `shmq` command."""

import sys

from shmq.tools.start import run

if __name__ == "__main__":
    sys.exit(run())
