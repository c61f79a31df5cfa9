"""Named brokers: which URL a name stands for, and which broker is meant when the command line does not say.

    $SHMQ_CONFIG_DIR/contexts.json, else $XDG_CONFIG_HOME/shmq/…, else ~/.config/shmq/…
        {"current": "prod", "contexts": {"prod": "rocketmq://ns-1:9876", "here": "shmq://default"}}

    -u URL   before   -c NAME   before   $SHMQ_URL   before   the current context   before   the broker "default"

Rules:
    (1) a URL may hold keys, so the file is for its owner only, and lists show URLs without their secrets;
    (2) the file is replaced as a whole; one that cannot be read is an error when it is needed, and stays as it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shmq.errors import NotFound, UsageError
from shmq.plain_file import open_plain, read_plain
from shmq.shm.place import home_directory

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_FILE_BYTES_MAX: Final = 1 << 20


def contexts_path() -> Path | None:
    """Return where this user's contexts are; None for one without a home."""
    named = os.environ.get("SHMQ_CONFIG_DIR")
    if named:
        return Path(named) / "contexts.json"
    config = os.environ.get("XDG_CONFIG_HOME")
    if config:
        return Path(config) / "shmq" / "contexts.json"
    home = home_directory()
    return home and home / ".config" / "shmq" / "contexts.json"


class Contexts:
    """The named brokers of one user."""

    def __init__(self, urls: Mapping[str, str] | None = None, current: str | None = None) -> None:
        self.urls = dict(urls or {})
        self.current = current

    def url_of(self, name: str) -> str:
        """Return the URL of a name.

        Raises:
            NotFound: there is no such context; the hint has the nearest ones.
        """
        if name not in self.urls:
            from shmq.message import nearest

            near = nearest(name, self.urls)
            hint = f"did you mean {' or '.join(near)}?" if near else f"add it: shmq context add {name} URL"
            raise NotFound(f'there is no context "{name}"', hint=hint)
        return self.urls[name]

    def add(self, name: str, url: str) -> None:
        """Give a URL a name, or a name another URL.

        Raises:
            UsageError, InvalidName: no name, or no URL.
        """
        if not re.fullmatch(_NAME, name):
            raise UsageError(
                f"{name!a} cannot name a context", hint="1 to 64 of A-Z a-z 0-9 _ . - beginning with a letter or digit"
            )
        from shmq.client.place import locate  # much code, which looking a name up need not load

        locate(url)
        self.urls[name] = url

    def remove(self, name: str) -> None:
        """Forget a name; without it nothing is current."""
        self.url_of(name)
        del self.urls[name]
        if self.current == name:
            self.current = None

    def use(self, name: str | None) -> None:
        """Make a name the current one; None: no name is."""
        if name is not None:
            self.url_of(name)
        self.current = name


def load_contexts() -> Contexts:
    """Return the contexts of this user; none if there is no file.

    Raises:
        UsageError: the file is damaged, or may not be read.
    """
    path = contexts_path()
    if path is None:
        return Contexts()
    try:
        found: Any = json.loads(read_plain(path, _FILE_BYTES_MAX, follows_links=True))
        urls, current = found["contexts"], found.get("current")
        is_sound = all(isinstance(text, str) for text in (*urls, *urls.values())) and (
            current is None or current in urls
        )
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="mend it, or remove it and add the contexts again"
        ) from None
    if not is_sound:
        raise UsageError(f"{path} holds no contexts", hint="mend it, or remove it and add the contexts again")
    return Contexts(urls, current)


def save_contexts(contexts: Contexts) -> None:
    """Write the contexts down.

    Raises:
        UsageError: this user has no home.
    """
    path = contexts_path()
    if path is None:
        raise UsageError(f"user {os.geteuid()} has no home directory for contexts", hint="set SHMQ_CONFIG_DIR")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.new")
    descriptor = open_plain(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with open(descriptor, "w") as file:
        json.dump({"current": contexts.current, "contexts": contexts.urls}, file, indent=2)
    os.replace(scratch, path)


def current_url() -> str | None:
    """Return the URL of the current context; None where $SHMQ_URL says more, or nothing is current."""
    if os.environ.get("SHMQ_URL"):
        return None
    contexts = load_contexts()
    return None if contexts.current is None else contexts.urls[contexts.current]
