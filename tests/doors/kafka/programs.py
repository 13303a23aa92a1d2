"""The programs of Kafka's clients, as processes of a test."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from proving.producers import command


class Program:
    """A producer's program, and what it has said."""

    def __init__(self, client: str, servers: str, topic: str, *arguments: str) -> None:
        given = ["--bootstrap", servers, "--topic", topic, "--client-id", "billing", *arguments]
        self.acked: list[int] = []
        self.failed: dict[int, str] = {}
        self.ended = False
        self.process = subprocess.Popen([*command(client), *given], stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "acked":
                self.acked.append(int(rest))
            elif word == "failed":
                number, _, reason = rest.partition(" ")
                self.failed[int(number)] = reason
            else:
                assert word == "end"
                self.ended = True

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._reader.join(seconds)
        assert self.process.wait(1) == 0
        assert self.ended


@contextmanager
def program(client: str, servers: str, topic: str, *arguments: str) -> Iterator[Program]:
    """A program, which is ended behind the block where it has not ended."""
    started = Program(client, servers, topic, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()
