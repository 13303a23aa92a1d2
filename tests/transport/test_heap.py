"""Received bytes leave no holes in the C library's heap, so a worker's memory does not grow."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from tests.waiting import SECONDS

PROGRAM = """
import asyncio, ctypes, json, random
from wallaroo_spark import transport
from wallaroo_spark.worker.memory import keep_memory

NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
CONNECTIONS, CHUNKS = 8, 6000

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

chance = random.Random(1)
received, small = [], []
enough = asyncio.Event()
count = 0

def keep(where, most, one):
    where.append(one)
    if len(where) > most:
        where.pop(chance.randrange(len(where)))

async def handler(stream):
    global count
    while data := await stream.read():
        count += 1
        keep(received, 200, data)
        keep(small, 3000, bytearray(chance.randint(600, 4000)))
        if count >= CHUNKS:
            enough.set()

async def send(peer):
    while not enough.is_set():
        peer.write(b"x" * chance.randint(50, 20_000))
        await peer.drain()
        await asyncio.sleep(0)
    peer.abort()

async def main():
    listener = await transport.serve(handler, "127.0.0.1", 0)
    peers = [await transport.connect(*listener.address, timeout=60) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(send(peer) for peer in peers))
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Heap
    heap = library.mallinfo2()
    print(json.dumps({"used": heap.uordblks, "free": heap.fordblks - heap.keepcost}))
    await listener.close()

keep_memory()
asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallinfo2 is glibc's")
def test_chunks_that_are_kept_for_a_while_leave_the_heap_without_holes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=SECONDS)

    assert done.returncode == 0, done.stderr
    heap = json.loads(done.stdout)
    assert heap["free"] < heap["used"] / 4, heap
