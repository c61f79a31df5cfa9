"""What the kernel's list of mounts says of the file system of a store."""

import os
from pathlib import Path

from shmq.store.mounts import Mount, mount_of, mounted_at
from tests.tables.rows import every_row

LIST = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
35 22 8:17 / /data rw,noatime shared:7 master:2 - {kind} /dev/sdb1 {options}
36 35 8:17 /box /data/with\\040blank {mount} - {kind} /dev/sdb1 {options}
broken line
"""


@every_row(
    ("path", "mount", "options", "expected"),
    [
        ("/data/store", "rw", "rw", False),
        ("/data/store", "rw", "ro", True),
        ("/data/store", "rw", "rw,errors=remount-ro,emergency_ro", True),
        ("/data/store", "rw", "rw,shutdown", True),
        ("/data/store", "rw", "rw,errors=remount-ro", False),
        ("/data/store", "ro", "rw", False),  # that is the mount below it
        ("/data/with blank/store", "ro,noatime", "rw", True),
        ("/database", "ro", "ro", False),  # no part of /data
    ],
)
def test_what_takes_no_writes_is_known_by_its_options(path: str, mount: str, options: str, expected: bool) -> None:
    found = mount_of(path, LIST.format(kind="ext4", mount=mount, options=options))
    assert found is not None and found.is_read_only == expected


def test_the_longest_mount_point_holds_a_path() -> None:
    listed = LIST.format(kind="xfs", mount="rw", options="rw")
    assert mount_of("/data/with blank/store", listed) == Mount("/data/with blank", "xfs", ("rw", "rw"))
    assert mount_of("/elsewhere", listed) == Mount("/", "ext4", ("rw", "relatime", "rw"))
    assert mount_of("/elsewhere", "") is None


def test_links_are_followed_to_the_file_system_that_holds_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to("/proc")
    found = mounted_at(os.fspath(tmp_path / "linked"))
    assert found is not None and found.kind == "proc"
