"""The pages become a site without a warning: each is in the table of contents, and each link leads to a page."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the generator of the site is not installed: pip install -e '.[docs]'")
pytest.importorskip("myst_parser")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-P", "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs"), str(ROOT)]
    done = subprocess.run([*build, str(built)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return built


def test_the_reference_has_every_public_name(site: Path) -> None:
    import shmq

    text = "".join(page.read_text() for page in (site / "docs/api").glob("*.html"))
    classes = [name for name in shmq.__all__ if isinstance(getattr(shmq, name), type)]
    assert [name for name in classes if f'id="shmq.{name}"' not in text] == []


def test_a_call_is_documented_with_its_arguments_and_its_example(site: Path) -> None:
    text = (site / "docs/api/connection.html").read_text()
    assert 'id="shmq.Connection.send"' in text
    assert 'id="shmq.connect"' in text and "Raises" in text and "42 apples" in text
