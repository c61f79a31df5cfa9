"""Build a release in a checkout, and try it.

    python -m shmq.tools.release --to dist

    dist/shmq-0.1.0.tar.gz                                         from which the wheels are built
    dist/shmq-0.1.0-cp311-cp311-manylinux_2_34_x86_64.whl          one for each Python that is found, and each processor
    dist/shmq-0.1.0-pages.tar.gz                                   the site of all pages
    dist/SHA256SUMS

Each wheel is installed into a new environment with no compiler on its path, where the tutorial has to work as it is
printed. Needs `pip install '.[release]'` and a C compiler; exit status 1 when anything is not as it should be.

    python -m shmq.tools.release --machine x86_64 --machine aarch64 --system aarch64=/srv/arm64

builds for another processor too, with Debian's cross compiler, and tries its wheels in a folder that holds a system
for it, such as `debootstrap --arch=arm64` makes; qemu-user-static runs the programs there, and only root may mount what
they need.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import click

from shmq.shm.descriptors import open_standard
from shmq.tools.release.archives import Archives, checksums
from shmq.tools.release.interpreters import VERSIONS, Interpreter, found
from shmq.tools.release.machines import CROSS, HERE, Machine
from shmq.tools.release.steps import Failure
from shmq.tools.release.trial import tried

_PROGRAMS = ("usr/bin", "usr/local/bin")


def _systems(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Read each `MACHINE=DIR`; the folder has to be there."""
    machines = sorted({HERE, *CROSS})
    systems: dict[str, Path] = {}
    for value in values:
        machine, _, folder = value.partition("=")
        if machine not in machines or not folder or not Path(folder).is_dir():
            raise click.BadParameter(
                f"{value!r} is not MACHINE=DIR of {', '.join(machines)} and a folder that is there"
            )
        systems[machine] = Path(folder).resolve()
    return systems


@click.command()
@click.option("--to", "target", type=click.Path(path_type=Path), default=Path("dist"), help="folder of the archives")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    help=f"an interpreter to build for; default: {', '.join(VERSIONS)} on the path",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    type=click.Choice(sorted({HERE, *CROSS})),
    help=f"a processor to build for; default: this host's, {HERE}",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    callback=_systems,
    metavar="MACHINE=DIR",
    help="the root folder of a system for another processor, in which to try its wheels; without it they are not tried",
)
@click.option("--no-pages", is_flag=True, help="leave the site of the pages out")
def release(
    target: Path,
    pythons: tuple[str, ...],
    machines: tuple[str, ...],
    systems: dict[str, Path],
    no_pages: bool,
) -> None:
    """Build the source archive, a wheel for each Python and processor, and the pages; try each wheel."""
    root = Path.cwd()
    if not (root / "setup.cfg").exists() or not (root / "docs/tutorial.md").exists():
        raise click.ClickException(f"{root} is no checkout of shmq; change to its root folder")
    interpreters = found(pythons)
    missing = [version for version in VERSIONS if version not in {each.version for each in interpreters}]
    if missing and not pythons:
        click.echo(f"not built, because they are not on the path: {', '.join(missing)}")
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="shmq-release-") as folder:
            archives = Archives(root, Path(folder), target.resolve())
            made = [source := archives.source()]
            click.echo(f"built {source.name}")
            for interpreter, machine in itertools.product(interpreters, machines or (HERE,)):
                made.append(wheel := archives.wheel(source, interpreter, Machine(machine)))
                click.echo(f"built {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB)")
                click.echo(f"  {_tried(root, Path(folder), wheel, interpreter, machine, systems)}")
            if not no_pages:
                made.append(archives.pages())
                click.echo(f"built {made[-1].name}")
    except Failure as failure:
        raise click.ClickException(str(failure)) from None
    (target / "SHA256SUMS").write_text(checksums(made))
    click.echo(f"all is in {target}")


def _tried(
    root: Path, work: Path, wheel: Path, interpreter: Interpreter, machine: str, systems: Mapping[str, Path]
) -> str:
    system = systems.get(machine)
    version = interpreter.version
    if system is None and machine != HERE:
        return f"not tried: no --system {machine}=DIR"
    if system is not None and not any((system / folder / f"python{version}").exists() for folder in _PROGRAMS):
        return f"not tried: {system} has no python{version}"
    begun = time.monotonic()
    where = tried(root, work, wheel, interpreter, system)
    if where != machine:
        raise Failure(f"{wheel.name} was tried on {where}: {system} holds a system for that")
    return f"the tutorial works with it on {where}, {time.monotonic() - begun:.0f} s from nothing"


if __name__ == "__main__":
    open_standard()
    sys.exit(release())
