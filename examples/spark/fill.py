"""Send every line of this host's documentation as a message, so that the other examples have something to analyse.

python examples/spark/fill.py [URL] [FOLDER] [MEGABYTES]
"""

import os
import sys
from pathlib import Path

import shmq

url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHMQ_URL", "default")
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "/usr/share/doc")
left = float(sys.argv[3] if len(sys.argv) > 3 else 5) * 1_000_000
count = 0
with shmq.connect(url if "://" in url else f"shmq://{url}") as mq:
    for path in sorted(folder.rglob("*")):
        if left <= 0 or not path.is_file() or path.suffix == ".gz":
            continue
        kind = path.suffix.lstrip(".") if path.suffix.lstrip(".").isalnum() else "plain"
        for line in path.read_bytes().splitlines():
            mq.send("lines", line[:65_536], tag=kind, properties={"file": path.name})
            count += 1
            left -= len(line)
print(f"{count:,} lines in topic lines")
