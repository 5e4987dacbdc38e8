"""A page of a file in memory that takes up no descriptor, and that no fork writes to."""

from __future__ import annotations

import ctypes
import mmap
import os

_shared: list[tuple[int, int]] = []  # (address, bytes) of this process's pages, until it ends


def shared_page(fd: int, size: int) -> memoryview:
    """Return the first bytes of an open file as memory that others see; raises OSError.

    Python's own `mmap` keeps a copy of the descriptor, of a number that the user's code may count
    on, and closes whatever has that number in the end.
    """
    if not hasattr(mmap, "PROT_WRITE"):  # Windows
        return memoryview(mmap.mmap(fd, size))
    address = _map(None, size, mmap.MAP_SHARED, fd)
    _shared.append((address, size))
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _map(address: int | None, size: int, flags: int, fd: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    place = (ctypes.c_void_p(address), ctypes.c_size_t(size))
    readable = mmap.PROT_READ | mmap.PROT_WRITE
    made = call(*place, readable, flags, fd, ctypes.c_long(0))
    if made is None or made == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory can be mapped")
    return made


def _keep_to_itself() -> None:
    """Give a fork pages of its own in place of those that it shares with its parent."""
    fixed = 0x10  # MAP_FIXED, on Linux and macOS alike
    for address, size in _shared:
        _map(address, size, fixed | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_to_itself)
