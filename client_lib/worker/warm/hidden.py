"""Keeps what the pool has imported out of sys.modules until it is asked for, so that a rank begins as a fresh process.

Modules are kept in groups, in the order in which the pool imported them. The first import of one brings back its group
and those before it, on which it may stand, with what they set: warnings filters, variables, finders, calls at the end.
Modules of the standard library stay visible: they keep no state of a script, and other modules look them up without an
import.

Standard library only, Python >= 3.8.
"""

import os
import sys
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from client_lib.worker.warm.at_exit import Callback


class Group(NamedTuple):
    """What one import brought."""

    modules: Dict[str, Any]
    filters: List[Any]
    """Warnings filters that it put in front of the others."""
    variables: Dict[str, str]
    """Environment variables that it set."""
    finders: List[Any]
    """That it put into sys.meta_path."""
    callbacks: List[Callback]
    """For the end of the process."""


class Hidden:
    """A finder that finds modules which are imported already."""

    def __init__(self, groups: List[Group], on_return: Callable[[List[str]], None]) -> None:
        """`on_return` is called with the names of modules that have come back."""
        self._groups = groups
        self._left = 0  # groups before this one are back
        self._on_return = on_return
        self._group_of = {name: number for number, group in enumerate(groups) for name in group.modules}

    def hide(self) -> None:
        for name in self._group_of:
            sys.modules.pop(name, None)
        hidden = [finder for group in self._groups for finder in group.finders]
        sys.meta_path[:] = [self] + [finder for finder in sys.meta_path if finder not in hidden]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        del path, target
        number = self._group_of.get(name, -1)
        if number < self._left:
            return None
        module = self._groups[number].modules[name]
        loader: Any = _Loader(self, number, module)
        known, spec = module.__spec__, type(sys.__spec__)(name, loader)
        for attribute in ("origin", "has_location", "cached", "submodule_search_locations"):
            setattr(spec, attribute, getattr(known, attribute, None))  # for those who only ask where it is
        return spec

    def bring_back(self, number: int) -> None:
        """All groups up to this one."""
        names: List[str] = []
        for group in self._groups[self._left : number + 1]:
            for name, module in group.modules.items():
                sys.modules.setdefault(name, module)
            names += group.modules
            warnings.filters[:0] = group.filters  # type: ignore[index]
            for name, value in group.variables.items():
                os.environ.setdefault(name, value)
            sys.meta_path += group.finders
            for callback in group.callbacks:
                callback.register()
        self._left = max(self._left, number + 1)
        filters_changed()
        self._on_return(names)


class _Loader:
    """Of one module that exists."""

    def __init__(self, hidden: Hidden, number: int, module: Any) -> None:
        self._hidden, self._number, self._module = hidden, number, module
        self._spec = module.__spec__

    def create_module(self, spec: Any) -> Any:
        del spec
        return self._module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # reading of resources

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec  # the import system has put its own there
        self._hidden.bring_back(self._number)


def filters_changed() -> None:
    """Tell the warnings module that its list of filters was changed by hand."""
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        if hasattr(warnings, name):
            getattr(warnings, name)()
            return
