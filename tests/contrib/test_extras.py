"""What a part of shmq.contrib stands on is named by who imports it without, and how it is installed."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("part", "library", "extra"), [("kombu", "kombu", "celery"), ("faststream", "faststream", "faststream")]
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(part: str, library: str, extra: str) -> None:
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import shmq
try:
    import shmq.contrib.{part}
except shmq.UsageError as error:
    print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == f"pip install 'shmq[{extra}]'\n", done.stderr
