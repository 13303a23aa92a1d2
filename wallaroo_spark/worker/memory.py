"""How a worker's process treats free memory: it will need it again at once.

A worker receives as much as it hands out, for as long as it lives. With its defaults glibc soon gives free memory back,
and the kernel clears every page that is taken again: half of the worker's CPU time went there. So free memory is kept,
up to a limit. A worker's memory is bounded by its budget, not by how little it holds at the moment.

Source: ``docs/decisions/free-memory-is-kept.md``; ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

KEEP_BYTES = 32 << 20
"""With more free bytes than this at the top of the heap, glibc gives memory back."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_GLIBC_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_memory() -> bool:
    """Have free memory of this process kept; False where the allocators cannot be told so.

    Columns go to jemalloc: in glibc's heap, blocks of some megabytes that are freed in another order than they were
    allocated leave holes, which made a process twice as large as its contents.
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
