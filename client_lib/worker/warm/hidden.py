"""Hides the packages that the pool has imported until a rank imports them, so that a rank begins as a fresh process.

Modules are kept in groups, in the order in which the pool imported them. The first import of one restores its group and
all groups before it, on which it may depend, with their side effects: attributes of packages, warnings filters,
variables, finders, calls at exit. Modules of the standard library stay visible: they keep no state of a script, and
other modules look them up without an import.
"""

import atexit
import os
import sys
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple


class Callback(NamedTuple):
    """A call that a package has registered with atexit."""

    function: Callable[..., Any]
    arguments: Tuple[Any, ...]
    named: Dict[str, Any]

    def register(self) -> None:
        atexit.register(self.function, *self.arguments, **self.named)


class Group(NamedTuple):
    """Modules and side effects of one import."""

    modules: Dict[str, Any]
    attributes: List[Tuple[Any, str, Any]]
    """Package, name and module of the submodules that it added to packages of groups before it."""
    filters: List[Any]
    """Warnings filters that it added before the others."""
    variables: Dict[str, str]
    """Environment variables that it set."""
    finders: List[Any]
    """Finders that it added to sys.meta_path."""
    callbacks: List[Callback]
    """Calls at exit."""


class Hidden:
    """A finder of hidden modules."""

    def __init__(self, groups: List[Group], on_return: Callable[[List[str]], None]) -> None:
        """`on_return` is called with the names of restored modules."""
        self._groups = groups
        self._left = 0  # groups before this one are restored
        self._on_return = on_return
        self._group_of = {name: number for number, group in enumerate(groups) for name in group.modules}

    def hide(self) -> None:
        for name in self._group_of:
            sys.modules.pop(name, None)
        for group in self._groups:
            for package, name, _ in group.attributes:
                delattr(package, name)
        hidden = [finder for group in self._groups for finder in group.finders]
        sys.meta_path[:] = [self] + [finder for finder in sys.meta_path if finder not in hidden]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[Any]:
        del path, target
        number = self._group_of.get(name, -1)
        if number < self._left:
            return None
        module = self._groups[number].modules[name]
        loader: Any = _RestoringLoader(self, number, module)
        known, spec = module.__spec__, type(sys.__spec__)(name, loader)
        for attribute in ("origin", "has_location", "cached", "submodule_search_locations"):
            setattr(spec, attribute, getattr(known, attribute, None))  # for callers of importlib.util.find_spec
        return spec

    def restore(self, number: int) -> None:
        """Restore all groups up to this one."""
        names: List[str] = []
        for group in self._groups[self._left : number + 1]:
            for name, module in group.modules.items():
                sys.modules.setdefault(name, module)
            for package, name, module in group.attributes:
                setattr(package, name, module)
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


class _RestoringLoader:
    """Loader of one hidden module."""

    def __init__(self, hidden: Hidden, number: int, module: Any) -> None:
        self._hidden, self._number, self._module = hidden, number, module
        self._spec = module.__spec__

    def create_module(self, spec: Any) -> Any:
        del spec
        return self._module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # readers of resources

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec  # the import system has set another one
        self._hidden.restore(self._number)


def filters_changed() -> None:
    """Invalidate the caches of the warnings module after a change of its list of filters."""
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        if hasattr(warnings, name):
            getattr(warnings, name)()
            return


class AtExitRecorder:
    """Replaces `atexit.register` inside of `with`, and records the calls of packages, so that only a process that
    imports them makes these calls at its end. Packages that keep a reference to it can use it later.

    The standard library's calls are passed on: its modules are visible in every rank.
    """

    def __init__(self) -> None:
        self._real = atexit.register
        self._records = False
        self._kept: List[Callback] = []

    def __enter__(self) -> "AtExitRecorder":
        self._records = True
        atexit.register = self  # type: ignore[assignment]
        return self

    def __exit__(self, *exception: object) -> None:
        self._records = False
        atexit.register = self._real

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self._records and not is_standard(caller):
            self._kept.append(Callback(function, arguments, named))
        else:
            self._real(function, *arguments, **named)
        return function

    def take(self) -> List[Callback]:
        """The calls recorded since the last `take`."""
        taken, self._kept = self._kept, []
        return taken


def standard() -> Tuple[str, ...]:
    """Folders of the standard library."""
    home = os.path.dirname(os.__file__)
    return (home, os.path.join(home, "lib-dynload"))


def is_standard(name: str) -> bool:
    """A loaded module belongs to the standard library."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None and "." in name:  # made by its package, without an import
        return is_standard(name.partition(".")[0])
    origin = getattr(spec, "origin", None)
    if origin in ("built-in", "frozen"):
        return True
    roots = tuple(path + os.sep for path in standard())
    return isinstance(origin, str) and origin.startswith(roots) and "-packages" + os.sep not in origin
