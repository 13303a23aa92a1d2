"""How a worker's process deals with memory: what it lets go of it will need again at once.

A worker takes in as much as it hands out, for as long as it lives. By default glibc soon gives back what is free, and
the kernel clears every page that is taken anew: measured, that was half of all that a worker does. So what is free is
kept, up to a limit. A worker's memory is bounded by its budget, not by how little it happens to hold.

Source: ``docs/decisions/free-memory-is-kept.md``; ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

KEEP_BYTES = 32 << 20
"""Free bytes at the top of the heap from which on glibc gives memory back."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_GLIBC_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_memory() -> bool:
    """Have free memory of this process kept for what comes next; False where the allocators cannot be told so.

    Columns go to jemalloc: in glibc's heap, blocks of some megabytes that are let go of in another order than they came
    in leave holes that made a process twice as large as what it held.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = {
        _ARENA_MAX: 1,
        _MMAP_THRESHOLD: _GLIBC_LARGEST_MMAP_THRESHOLD,
        _TRIM_THRESHOLD: KEEP_BYTES,
        _TOP_PAD: 1 << 20,
    }
    done = [library.mallopt(name, value) for name, value in settings.items()]
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return False
    pa.set_memory_pool(pool)
    return all(done)
