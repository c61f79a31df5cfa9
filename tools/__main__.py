"""`python -m shmq.tools` is the `shmq` command."""

import sys

from shmq.tools.start import main

if __name__ == "__main__":
    sys.exit(main())
