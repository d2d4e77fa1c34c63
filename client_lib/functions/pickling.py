"""The pickler of functions: cloudpickle's, whose functions of `__main__` have the worker's `__main__` as their globals.

cloudpickle sends what was defined in `__main__` by value and gives each function a namespace that belongs to no module.
So a model whose class was defined in a notebook cell could not be saved by `torch.save` in the worker: pickle looks for
the class in `__main__`. Here these functions share the namespace of the worker's `__main__`, and what was pickled by
value is remembered, so that it can be bound there by name. Only `payload` uses this; it loads cloudpickle.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import IO, Any

import cloudpickle

_DATA = frozenset({"Tensor", "Parameter", "UntypedStorage", "ndarray", "DataFrame", "Series", "Table"})


class Pickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """Pickles for a worker. Several calls of `dump` share a memo, as one Unpickler's calls of `load` do."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.main: dict[str, Any] = {}
        """Functions and classes of `__main__` that were pickled by value, by their names."""
        self.sources: set[str] = set()
        """Files that the code of functions comes from that were pickled by value."""
        self._main = vars(sys.modules["__main__"])
        self.globals_ref = {id(self._main): _MainNamespace()}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType | type) and getattr(obj, "__module__", None) == "__main__":
            self._remember(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and reduced is not NotImplemented:
            self.sources.add(obj.__code__.co_filename)
        return reduced

    def _remember(self, thing: Any) -> None:
        name = thing.__qualname__
        if name.isidentifier() and (self._main.get(name) is thing or name not in self.main):
            self.main[name] = thing


class Finder(Pickler):
    """Finds what of `__main__` is in the arguments, and writes no data of theirs."""

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        return "data" if kind.__name__ in _DATA or kind in (bytes, bytearray) else None


class _MainNamespace:
    """In a pickle: the namespace of whichever `__main__` reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return vars, (sys.modules["__main__"],)
