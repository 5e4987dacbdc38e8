"""Landlock, where the kernel has it: a process gives up rights for good, its children with it.

Unlike Python's audit hook this holds for C code and for other programs too. Linux 5.13 and later
(https://docs.kernel.org/userspace-api/landlock.html); standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
PR_SET_NO_NEW_PRIVS = 38
PATH_BENEATH, ASK_VERSION = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
READ = EXECUTE | READ_FILE | READ_DIR | IOCTL_DEVICE
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many of them each version knows
NET_BIND_AND_CONNECT, SCOPE_SOCKETS_AND_SIGNALS = 0b11, 0b11


def version() -> int:
    """Return which version of Landlock there is; 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(CREATE, None, 0, ASK_VERSION))


def restrict(read: list[str], write: list[str]) -> bool:
    """Leave this thread, and all it starts, only the folders and files in `read` and `write`.

    TCP (from version 4) and signals to other processes (from version 6) go too. Returns whether
    the kernel agreed; paths that are not there are passed over.
    """
    if not (found := version()):
        return False
    handled = (1 << RIGHTS.get(found, 16)) - 1
    attributes = struct.pack("=Q", handled)
    if found >= 4:
        attributes += struct.pack("=Q", NET_BIND_AND_CONNECT)
    if found >= 6:
        attributes += struct.pack("=Q", SCOPE_SOCKETS_AND_SIGNALS)
    libc = _libc()
    rules = libc.syscall(CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for paths, rights in ((read, READ), (write, handled)):
            for path in paths:
                _allow(libc, rules, path, rights & handled)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return libc.syscall(RESTRICT_SELF, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= OF_A_FILE
        rule = struct.pack("=Qi", rights, place)
        libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
