"""Permissions of files that count for this process, although it may run as root.

Root has the capabilities that override modes of files. Without them it is denied what its own files deny to their owner.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3 of linux/capability.h."""
_OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def modes_count() -> Iterator[None]:
    """Let modes of files count for this thread, and for those that it starts, until the block ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Set * 2)()
    _check(libc.capget(ctypes.byref(header), ctypes.byref(sets)))
    before = sets[0].effective
    sets[0].effective = before & ~_OVERRIDES
    _check(libc.capset(ctypes.byref(header), ctypes.byref(sets)))
    try:
        yield
    finally:
        sets[0].effective = before
        _check(libc.capset(ctypes.byref(header), ctypes.byref(sets)))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
