"""Effects of an import on the process: what changed in containers, and how that is taken back and made again. Pure.

The pool imports it before all others: it imports nothing that a fresh interpreter has not imported itself.
"""

from __future__ import annotations

import _operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_KINDS = (dict, list, set)


class ModuleGroup:
    """The modules and the effects of one import."""

    def __init__(self, root: str = "") -> None:
        self.root = root
        self.modules: dict[str, Any] = {}
        self.replaced: dict[str, Any] = {}
        """Modules that it puts in the place of those of other groups."""
        self.needs: list[ModuleGroup] = []
        """Groups that its import restores, in this order."""
        self.changes: list[Change] = []
        self.variables: dict[str, str] = {}
        """Environment variables that it sets."""
        self.callbacks: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        """Calls at exit."""
        self.watched: list[Watched] = []
        """Its own containers, which later groups may change."""
        self.standard = False
        """It is of the standard library."""
        self.visible = False


class Watched:
    """A container, and what it holds."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.copy: Any = container.copy()

    def changes(self) -> list[Change]:
        now, before = self.container, self.copy
        if len(now) != len(before) or any(map(_operator.is_not, _values(now), _values(before))):
            return [Change(self)]
        return []


def _values(container: Any) -> Iterable[Any]:
    """Those whose identity tells that one was replaced."""
    return container.values() if isinstance(container, dict) else container if isinstance(container, list) else ()


class Change:
    """The difference between a container and its copy."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        before, now = watched.copy, watched.container
        self._old, self._new = before.copy(), now.copy()
        self._around: tuple[list[Any], list[Any]] | None = None
        """Entries that were put before and behind those of a list; None: they were changed in another way."""
        if isinstance(now, list):
            first = _place(before, now)
            if first >= 0:
                self._around = now[:first], now[first + len(before) :]
        elif isinstance(now, set):
            self._old, self._new = before - now, now - before
        else:
            missing = object()
            self._old = {key: value for key, value in before.items() if now.get(key, missing) is not value}
            self._new = {key: value for key, value in now.items() if before.get(key, missing) is not value}

    def redo(self, noted: bool = True) -> None:
        """`noted`: change the copy, too."""
        for container in self._targets(noted):
            if self._around is None:
                _replace(container, self._old, self._new)
            else:
                container[:] = self._around[0] + container + self._around[1]

    def undo(self, noted: bool = True) -> None:
        for container in self._targets(noted):
            if self._around is None:
                _replace(container, self._new, self._old)
            else:
                before, behind = map(len, self._around)
                container[:] = container[before : len(container) - behind]

    def _targets(self, noted: bool) -> list[Any]:
        noted = noted and self._watched.copy is not None
        return [self._watched.container, self._watched.copy] if noted else [self._watched.container]


def _replace(container: Any, old: Any, new: Any) -> None:
    if isinstance(container, list):
        container[:] = new
    elif isinstance(container, set):
        container -= old
        container |= new
    else:
        for key in old:
            if key not in new:
                container.pop(key, None)
        container.update(new)


def _place(part: list[Any], whole: list[Any]) -> int:
    """The index of `part` in `whole`; -1: it is not there."""
    for first in range(len(whole) - len(part) + 1):
        if all(whole[first + place] is entry for place, entry in enumerate(part)):
            return first
    return -1


def containers(modules: Iterable[Any]) -> Iterator[Any]:
    """The dictionaries, lists and sets that hold the state of modules and of their classes."""
    for module in modules:
        if getattr(module, "__name__", "") == "logging":
            yield module.root.manager.loggerDict
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        yield names
        for name, value in list(names.items()):
            if type(value) in _KINDS and name != "__builtins__":
                yield value
            elif issubclass(type(value), type) and value.__module__ == names.get("__name__"):
                yield from [held for held in vars(value).values() if type(held) in _KINDS]
