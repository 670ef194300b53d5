"""What ranks on CPUs tell the C library about their heap, from their start on.

PyTorch wants tensors at addresses that 64 divides. glibc cuts what lies before and behind off what it finds, and its
cache of each thread (tcache) keeps these scraps apart from their neighbours, so that what is freed between them is too
small for the next tensor of equal size: a heap whose tensors come and go grows from step to step.
And a heap that shrinks after every large tensor has a page fault for every 4 KiB of the next.

glibc reads this when a process starts, and no function sets it later; other C libraries do not know it.
"""

from __future__ import annotations

from collections.abc import Mapping

TUNABLES = "GLIBC_TUNABLES"
"""Environment: of glibc."""
_MMAP_BYTES, _TRIM_BYTES = 32 * 2**20, 256 * 2**20
"""What is larger has pages of its own (glibc's own upper limit); a free end of the heap that large is given back."""
SETTINGS = {
    "glibc.malloc.tcache_count": 0,
    "glibc.malloc.mmap_threshold": _MMAP_BYTES,
    "glibc.malloc.trim_threshold": _TRIM_BYTES,
}


def heap_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a rank's environment has besides; nothing where the user has set tunables."""
    if TUNABLES in environment:
        return {}
    return {TUNABLES: ":".join(f"{name}={value}" for name, value in SETTINGS.items())}
