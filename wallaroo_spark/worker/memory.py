"""Keeps free memory in the worker's process.

A worker receives and sends the same number of bytes for as long as it runs. With its defaults glibc soon returns free
memory to the kernel, which clears every page that is allocated again: half of the worker's CPU time was spent on that.
So free memory is kept, up to a limit. A worker's memory is bounded by its budget, not by the bytes that it holds now.

Source: ``docs/decisions/free-memory-is-kept.md``; ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

KEEP_BYTES = 32 << 20
"""glibc returns memory when more than this many bytes at the top of the heap are free.

The figures are in ``docs/decisions/free-memory-is-kept.md``; this size is that of glibc's greatest mmap threshold.
"""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_GLIBC_LARGEST_MMAP_THRESHOLD = 32 << 20


def keep_memory() -> bool:
    """Keep this process's free memory. Returns False where the allocators have no such setting.

    Columns are allocated by jemalloc: in glibc's heap, blocks of some megabytes that are freed in another order than
    they were allocated leave holes, which made a process twice as large as its contents.
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
