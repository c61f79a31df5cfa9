"""Where a broker is found: names, URLs, directories."""

import os
import stat
from pathlib import Path

import pytest

from shmq.errors import InvalidName, PermissionDenied, UsageError
from shmq.shm.place import (
    SOCKET_PATH_BYTES_MAX,
    Place,
    check_broker_name,
    check_store_path,
    checked,
    default_store,
    home_directory,
    place_of,
    prepare_runtime,
)
from tests.tables.rows import every_row


def test_a_name_url_lies_below_the_configured_runtime_directory(tmp_path: Path) -> None:
    assert place_of("shmq://orders") == Place("orders", tmp_path / "run" / "orders")


def test_no_url_means_the_default_broker_unless_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of().broker_name == "default"
    monkeypatch.setenv("SHMQ_URL", "shmq://Other")
    assert place_of().broker_name == "Other"


def test_a_path_url_names_the_runtime_directory_itself() -> None:
    place = place_of("shmq:///srv/queues/orders/")
    assert place == Place("orders", Path("/srv/queues/orders"))
    assert place.socket_path == Path("/srv/queues/orders/control.sock")
    assert place.instance_path == Path("/srv/queues/orders/instance.json")


@every_row("url", ["rocketmq://host:9876", "orders", "shmq://", "shmq:///", "shmq://a/b", "shmq://a?b=c"])
def test_what_names_no_local_broker_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        place_of(url)
    assert "shmq://" in caught.value.hint


@every_row("name", ["", ".", "..", "-a", "a/b", "a b", "ä", "a" * 65, "a\0b"])
def test_a_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        check_broker_name(name)


def test_a_socket_path_the_kernel_would_refuse_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMQ_RUNTIME_DIR", "/" + "d" * SOCKET_PATH_BYTES_MAX)
    with pytest.raises(UsageError, match="107"):
        place_of("shmq://orders")


@pytest.mark.parametrize("name", ["a b", "..", ".x", "-x", "ä", "a\tb", "x" * 65])
def test_a_directory_that_no_url_could_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no URL leads to") as refused:
        checked(Place("orders", Path("/srv") / name))
    assert "--runtime-dir" in refused.value.hint


@pytest.mark.parametrize("path", ["/srv/a b/x", "/srv/a%41/x", "/srv/50%/x", "/srv/a?b#c/x", "/srv/\u00fc/x"])
def test_the_url_of_a_directory_leads_there(path: str) -> None:
    place = checked(Place("x", Path(path)))
    assert place_of(place.url) == place
    assert place_of(place._replace(allocation="circle").url) == place._replace(allocation="circle")


@pytest.mark.parametrize("path", ["/s" * 512, "/st\udcff", "/s\0t"], ids=["long", "bytes", "zero"])
def test_a_path_that_the_segments_cannot_name_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="store path"):
        check_store_path(Path(path))
    with pytest.raises(UsageError, match="socket path"):
        checked(Place("orders", Path(path)))
    assert check_store_path(Path("/" + "s" * 1020 + "ü")).name.endswith("ü")


def test_a_user_without_a_home_gets_what_to_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("SHMQ_STORE", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # no passwd has it
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert home_directory() is None
    with pytest.raises(UsageError, match="4000000 has no home"):
        default_store("a")


def test_without_configuration_the_directories_depend_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHMQ_RUNTIME_DIR", "SHMQ_STORE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert place_of("shmq://a").runtime_dir == Path("/run/shmq/a")
    assert default_store("a") == Path("/var/lib/shmq/a")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert place_of("shmq://a").runtime_dir == Path("/tmp/shmq-1234/a")
    assert default_store("a") == Path.home() / ".local/share/shmq/a"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1234")
    assert place_of("shmq://a").runtime_dir == Path("/run/user/1234/shmq/a")


def test_the_runtime_directory_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    place = Place("a", tmp_path / "run" / "a")
    before = os.umask(0o777)
    try:
        prepare_runtime(place, mode=0o750, gid=-1)
    finally:
        os.umask(before)
        os.chmod(tmp_path / "run", 0o755)
    assert stat.S_IMODE(place.runtime_dir.stat().st_mode) == 0o750


def test_a_runtime_directory_that_all_users_may_write_into_is_refused(tmp_path: Path) -> None:
    place = Place("a", tmp_path / "run" / "a")
    place.runtime_dir.mkdir(parents=True)
    place.runtime_dir.chmod(0o777)
    with pytest.raises(PermissionDenied, match="0777"):
        prepare_runtime(place, mode=0o700, gid=-1)


def test_a_link_in_place_of_the_runtime_directory_is_refused(tmp_path: Path) -> None:
    place = Place("a", tmp_path / "run" / "a")
    place.runtime_dir.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    place.runtime_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionDenied, match="not a directory"):
        prepare_runtime(place, mode=0o700, gid=-1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    place = Place("a", tmp_path / "run" / "a")
    place.runtime_dir.mkdir(parents=True)
    os.chown(place.runtime_dir, 65534, -1)
    with pytest.raises(PermissionDenied, match="65534"):
        prepare_runtime(place, mode=0o700, gid=-1)
