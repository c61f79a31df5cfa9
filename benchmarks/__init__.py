"""Every figure of benchmarks/README.md comes from here: `python -m benchmarks.local` in the repository root.

`python -m` puts the current directory first on the path, where the root folder `shmq/` would hide the installed package
(it has no built extension beside it in `bindings/`). So the root moves to the end of the path, here and in every Python
that a measurement starts.
"""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != ROOT] + [ROOT]
os.environ["PYTHONSAFEPATH"] = "1"
