"""Two machines joined by a cable that loses, delays and reorders packets, whatever protocol they have.

The machines are network namespaces, and each end of the cable is a TUN device whose packets this process forwards: a
kernel without netem can do it. It needs root, ``ip`` and ``/dev/net/tun``.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET = 65536


@dataclass(frozen=True)
class Weather:
    """How the cable treats a packet."""

    loss: float = 0.0
    """The share of packets that are dropped."""
    delay: float = 0.0
    """Seconds that a packet takes, in each direction."""
    late: float = 0.0
    """The share of packets that take twice as long, so that others overtake them."""


class LossyCable:
    """The two machines and their cable. Programs are started in them with the prefixes ``near`` and ``far``.

    Raises OSError or CalledProcessError where a namespace or a device cannot be made.
    """

    def __init__(self, weather: Weather = Weather(), seed: int = 0) -> None:
        self.weather = weather
        """It may be changed at any time."""
        self.dropped = 0
        """Packets that were dropped."""
        self._random = random.Random(seed)
        own = os.getpid()
        self._spaces = (f"wallaroo-near-{own}", f"wallaroo-far-{own}")
        self._network = f"198.18.{own % 250 + 1}"
        self.near_address, self.far_address = f"{self._network}.1", f"{self._network}.2"
        self._devices: list[int] = []
        self._ended, self._wake = os.pipe()
        self._forwarding = threading.Thread(target=self._forward, name="cable", daemon=True)

    def __enter__(self) -> Self:
        try:
            for space, address in zip(self._spaces, (self.near_address, self.far_address), strict=True):
                _run("ip", "netns", "add", space)
                name = f"wt{len(self._devices)}{os.getpid()}"[:15]
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                self._devices.append(device)
                fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
                _run("ip", "link", "set", name, "netns", space)
                _run("ip", "-n", space, "link", "set", name, "name", "cable")
                _run("ip", "-n", space, "link", "set", "lo", "up")
                _run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "cable")
                _run("ip", "-n", space, "link", "set", "cable", "up")
        except BaseException:
            self._remove()
            raise
        self._forwarding.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.write(self._wake, b"x")
        self._forwarding.join()
        self._remove()

    @property
    def near(self) -> Sequence[str]:
        """What a command is prefixed with to run on the near machine."""
        return ("ip", "netns", "exec", self._spaces[0])

    @property
    def far(self) -> Sequence[str]:
        """What a command is prefixed with to run on the far machine."""
        return ("ip", "netns", "exec", self._spaces[1])

    def move_near(self) -> str:
        """Give the near machine another address, and take the old one away. Returns the new one."""
        old, self.near_address = self.near_address, f"{self._network}.{self._random.randrange(3, 254)}"
        space = self._spaces[0]
        _run("ip", "-n", space, "addr", "del", f"{old}/24", "dev", "cable")
        _run("ip", "-n", space, "addr", "add", f"{self.near_address}/24", "dev", "cable")
        return self.near_address

    def _forward(self) -> None:
        under_way: list[tuple[float, int, int, bytes]] = []
        sequence = 0
        poll = select.poll()
        for file in (*self._devices, self._ended):
            poll.register(file, select.POLLIN)
        other = dict(zip(self._devices, reversed(self._devices), strict=True))
        while True:
            wait = max(0.0, under_way[0][0] - time.monotonic()) * 1000 if under_way else None
            ready = [file for file, _ in poll.poll(wait)]
            if self._ended in ready:
                return
            for file in ready:
                packet = _read(file)
                if packet is None or self._random.random() < self.weather.loss:
                    self.dropped += packet is not None
                    continue
                delay = self.weather.delay * (2 if self._random.random() < self.weather.late else 1)
                sequence += 1
                heapq.heappush(under_way, (time.monotonic() + delay, sequence, other[file], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(under_way)
                try:
                    os.write(to, packet)
                except OSError:
                    self.dropped += 1  # The device's queue is full, or it is down.

    def _remove(self) -> None:
        for device in self._devices:
            os.close(device)
        os.close(self._ended)
        os.close(self._wake)
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _read(device: int) -> bytes | None:
    try:
        return os.read(device, _PACKET)
    except BlockingIOError:
        return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
