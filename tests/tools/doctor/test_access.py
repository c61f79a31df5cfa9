"""Who may do what, and what a logout takes away, is read from the files that decide it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shmq.shm.place import Place
from shmq.tools.doctor import access
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import WORDS
from shmq.tools.doctor.host import Host

SYSTEMD = {"/run/systemd/system/here": ""}
CONFIG = "/etc/systemd/logind.conf"


@pytest.mark.parametrize(
    ("files", "owner", "verdict", "words"),
    [
        ({}, 1000, "ok", "no systemd here"),
        (SYSTEMD, 1000, "warn", "logout deletes them"),
        (SYSTEMD, 990, "ok", "system user"),
        ({**SYSTEMD, "/etc/login.defs": "SYS_UID_MAX 500\n"}, 990, "warn", "logout deletes them"),
        ({**SYSTEMD, CONFIG: "[Login]\nRemoveIPC=no\n"}, 1000, "ok", "RemoveIPC=no"),
        ({**SYSTEMD, CONFIG: "[Login]\n#RemoveIPC=no\n"}, 1000, "warn", "logout deletes them"),
        ({**SYSTEMD, "/var/lib/systemd/linger/#4321": ""}, 4321, "ok", "lingers"),
    ],
)
def test_logout_takes_the_segments_of_login_users_only(
    case_on: Callable[..., Case], files: dict[str, str], owner: int, verdict: str, words: str
) -> None:
    [found] = access.check_logind(case_on(files, owner=owner))
    assert WORDS[found.verdict] == verdict and words in found.what
    assert verdict == "ok" or "RemoveIPC=no in /etc/systemd/logind.conf" in found.do


def test_a_later_directory_and_a_drop_in_win(tmp_path: Path) -> None:
    def write(path: str, value: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"[Login]\nRemoveIPC={value}\n")

    assert access.remove_ipc(Host(tmp_path)) is True
    write("usr/lib/systemd/logind.conf", "no")
    assert access.remove_ipc(Host(tmp_path)) is False
    write("etc/systemd/logind.conf", "yes")
    assert access.remove_ipc(Host(tmp_path)) is True
    write("usr/lib/systemd/logind.conf.d/50-mine.conf", "no")
    assert access.remove_ipc(Host(tmp_path)) is False


def test_a_runtime_directory_of_a_session_goes_with_it(case_on: Callable[..., Case]) -> None:
    case = case_on({**SYSTEMD, CONFIG: "RemoveIPC=no\n"}, owner=1000)
    session = replace(case, place=Place("x", Path("/run/user/1000/shmq/x")))
    [_, found] = access.check_logind(session)
    assert WORDS[found.verdict] == "warn" and "enable-linger" in found.do
    assert len(list(access.check_logind(case))) == 1


def test_a_directory_that_others_may_write_is_a_failure(case_on: Callable[..., Case], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    case = replace(case_on({}), place=Place("x", tmp_path / "run"))
    assert [WORDS[found.verdict] for found in access.check_directories(case)] == ["ok"]
    (tmp_path / "run").chmod(0o777)
    [found] = access.check_directories(case)
    assert WORDS[found.verdict] == "fail" and "0777" in found.what and "chmod o-w" in found.do
