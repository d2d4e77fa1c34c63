"""Other bounds of time, size and number for one test."""

import importlib
from types import ModuleType
from typing import Protocol

import pytest


class Bounds(Protocol):
    def __call__(self, module: ModuleType | str, **values: float | tuple[float, ...]) -> None: ...


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    """Sets constants of a module until the end of the test: `bounds(search, LINES_MAX=2)`.

    The bounds are constants because no user changes them. With the real bounds a test would take
    minutes or gigabytes, or fail on a busy machine.
    """

    def set_constants(module: ModuleType | str, **values: float | tuple[float, ...]) -> None:
        owner = importlib.import_module(module) if isinstance(module, str) else module
        for name, value in values.items():
            assert isinstance(getattr(owner, name), (int, float, tuple)), name
            # the docstring of this fixture has the reason
            monkeypatch.setattr(owner, name, value)

    return set_constants
