"""A log file that was made is whole on every disk that a power cut may leave, before anything is written to it."""

import subprocess
import sys
from pathlib import Path

from tests.crash.disk.disk import FaultyDisk

FILES, FILE_BYTES, IMAGES = 2, 64 << 10, 20
MADE = """
import sys
from pathlib import Path
from shmq.shm.access import Access
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout
layout = StoreLayout(Path(sys.argv[1]), Access(-1))
layout.prepare()
files = CommitLogFiles(layout, file_bytes=int(sys.argv[3]))
for _ in range(int(sys.argv[2])):
    files.create_next()
"""


def test_a_log_file_that_was_made_is_whole_on_every_disk(tmp_path: Path) -> None:
    root, names = tmp_path / "store", [f"{number * FILE_BYTES:020d}" for number in range(FILES)]
    root.mkdir()
    with FaultyDisk(root) as disk:
        with disk.around():
            subprocess.run([sys.executable, "-c", MADE, str(root), str(FILES), str(FILE_BYTES)], check=True, timeout=60)
        (tmp_path / "cut").mkdir()
        snapshot = disk.snapshot(tmp_path / "cut")
        for seed in range(IMAGES):
            image = tmp_path / f"image-{seed}"
            snapshot.image(seed, image)
            found = {path.name: path.stat().st_size for path in (image / "commitlog").glob("*")}
            assert found == dict.fromkeys(names, FILE_BYTES), seed
