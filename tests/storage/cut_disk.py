"""A disk whose power a test cuts: a file system on a loop device, whose image is copied while it is written to.

What is in the copy is what the disk had been given by then. What is still in the memory of the mounted file system is
not in it. The copy is used only if the device has written nothing meanwhile, so it is the disk of one moment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import SECONDS

MEGABYTES = 160


def require_loop_devices() -> None:
    """Skip the test where file systems cannot be mounted from an image."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts an image of a disk: run the test as root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 makes the image of a disk: install e2fsprogs")
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system gives no loop device, on which an image of a disk is mounted")


class CutDisk:
    """A mounted disk in ``folder``. :meth:`cut` copies what it has at one moment."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.image, self.mounted = folder / "disk.img", folder / "disk"
        self._device = ""
        self.cuts = 0

    def __enter__(self) -> CutDisk:
        with self.image.open("wb") as image:
            image.truncate(MEGABYTES << 20)
        # Nothing is set up later, in the background, so the device is quiet while nothing is written.
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        subprocess.run(["mkfs.ext4", "-q", "-E", lazy, str(self.image)], check=True)
        self.mounted.mkdir()
        self._device = mount(self.image, self.mounted)
        return self

    def __exit__(self, *_: object) -> None:
        unmount(self.mounted, self._device)

    def cut(self) -> Path:
        """Copy the disk as it is now; return the image of the copy."""
        self.cuts += 1
        copy = self.image.with_name(f"cut-{self.cuts}.img")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            before = self._written()
            subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
            if self._written() == before:
                return copy
        raise AssertionError("the disk was never quiet for the time of a copy")

    def _written(self) -> tuple[int, int, int]:
        """The numbers of writes and flushes that the device has done, and of those that it does now."""
        figures = Path(f"/sys/block/{Path(self._device).name}/stat").read_text().split()
        return int(figures[4]), int(figures[15]), int(figures[8])


@contextmanager
def powered_on(image: Path, folder: Path | None = None) -> Iterator[Path]:
    """The file system of a copy, mounted at a folder of its own or at ``folder``; the image is deleted afterwards."""
    folder = folder or image.with_suffix("")
    folder.mkdir(exist_ok=True)
    device = mount(image, folder)
    try:
        yield folder
    finally:
        unmount(folder, device)
        image.unlink()


def mount(image: Path, folder: Path) -> str:
    """Mount an image; return its loop device."""
    found = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True)
    device = found.stdout.strip()
    subprocess.run(["mount", device, str(folder)], check=True)
    return device


def unmount(folder: Path, device: str) -> None:
    """Unmount a folder, also when something still uses it, and give its device back."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    subprocess.run(["losetup", "--detach", device], check=True)
