"""Rights that do not depend on who runs the tests: file modes that hold for root, too, and another
user for code that asks who it is.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator

import pytest

_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3 of linux/capability.h
_DAC = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: why root reads everything


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def file_modes_hold() -> Iterator[None]:
    """While it lasts, this thread reads only what its user may; on Linux
    also where that user is root.
    """
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = _Header(_VERSION, 0), (_Data * 2)()
    _call(libc.capget(ctypes.byref(header), data))
    before = data[0].effective
    data[0].effective = before & ~_DAC
    _call(libc.capset(ctypes.byref(header), data))
    try:
        yield
    finally:
        data[0].effective = before
        _call(libc.capset(ctypes.byref(header), data))


@pytest.fixture
def seems_run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Returns a function that makes this process seem to run as the user with a number."""

    def set_user(uid: int) -> None:
        # a test that became another user could not become root again
        monkeypatch.setattr(os, "geteuid", lambda: uid)

    return set_user


def _call(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
