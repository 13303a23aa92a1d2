"""Programs of Debian's packages for tests, unpacked below ``build/``; nothing is installed in the system."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from proving.servers.packages.maven import ROOT

FETCH_SECONDS = 240
_DEPENDS = [
    "--recurse",
    *(f"--no-{one}" for one in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")),
]


class PackageUnfetched(Exception):
    """A program is not installed, and its package cannot be fetched; the message says how to install it."""


def unpacked(package: str, programs: Collection[str], needs: str = "lib") -> Path:
    """The folder with an unpacked package and what it needs and the system lacks, fetched once per clone.

    Of the packages that it depends on, it needs those whose names begin with ``needs``.

    Raises :class:`PackageUnfetched` unless the ``programs``, paths below the folder, are in it then.
    """
    folder = ROOT / "build" / package / "debian"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _fetch(package, programs, needs, folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The environment in which a program finds the libraries that were unpacked beside it."""
    libraries = [*folder.glob("usr/lib/*-linux-gnu*"), *folder.glob("lib/*-linux-gnu*")]
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}


def _fetch(package: str, programs: Collection[str], needs: str, folder: Path) -> None:
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    said = _run(part, "apt-get", "download", package)
    if not list(part.glob("*.deb")):
        # The lists of packages are missing or old.
        _run(part, "apt-get", "update")
        said = _run(part, "apt-get", "download", package)
    needed = _run(part, "apt-cache", "depends", *_DEPENDS, package, most=100_000).split()
    others = sorted({one for one in needed if one.startswith(needs)})
    lacking = [one for one in others if "ok installed" not in _run(part, "dpkg-query", "-W", "-f${Status}", one)]
    if lacking:
        _run(part, "apt-get", "download", *lacking)
    for archive in list(part.glob("*.deb")):
        said = _run(part, "dpkg", "-x", archive.name, ".")
        archive.unlink()
    if not all((part / name).exists() for name in programs):
        shutil.rmtree(part, ignore_errors=True)
        raise PackageUnfetched(
            f"a test needs {package}, and neither is it on the PATH nor can apt-get fetch it; install it (Debian, "
            f"Ubuntu: apt-get install {package}): {said}"
        )
    part.rename(folder)


def _run(folder: Path, *command: str, most: int = 500) -> str:
    """Run a command; returns the end of its output."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout + done.stderr)[-most:]
