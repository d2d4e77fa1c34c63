"""Imports modules into the pool, hides them, and gives them back to the rank that imports them.

A group is what one import loads in a process that has imported nothing else: its modules, the
groups that it needs, and its effects: entries in dictionaries, lists and sets of other modules and
of their classes (submodules of packages, registries, loggers, warnings filters, finders, caches),
environment variables, calls at exit. After each import all of it is taken away: the next import,
and each rank, begins in the state of a fresh interpreter. An import of a module that is not known
yet, of another package, suspends the one that requests it and is learned as a group of its own.

The pool imports this module before all others. It imports nothing that a fresh interpreter has not
imported itself.
"""

from __future__ import annotations

import _codecs
import _imp
import _operator
import _thread
import _warnings
import builtins
import encodings
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType
    from typing import Any

OURS = "client_lib"
STANDARD = os.path.dirname(os.__file__) + os.sep  # beginning of the paths of the standard library
_KINDS = (dict, list, set)
_SET_BY_AN_IMPORT = ("__spec__", "__loader__", "__package__", "__path__", "__file__", "__cached__")


# --- what one import has loaded and changed


class ModuleGroup:
    """The modules and the effects of one import."""

    def __init__(self, root: str = "") -> None:
        self.root = root
        self.modules: dict[str, Any] = {}
        # modules that the import puts in the place of modules of other groups
        self.replaced: dict[str, Any] = {}
        self.needs: list[ModuleGroup] = []  # groups that its import restores, in this order
        self.changes: list[Change] = []
        self.variables: dict[str, str] = {}  # environment variables that the import sets
        self.callbacks: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []  # calls at exit
        self.watched: list[Watched] = []  # containers of this group, which later groups may change
        self.standard = False  # it is of the standard library
        self.visible = False


class Watched:
    """A container, and its content at the last look."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.copy: Any = container.copy()

    def has_changed(self) -> bool:
        now = self.container
        before = self.copy
        if len(now) != len(before):
            return True
        if isinstance(now, dict):
            return any(map(_operator.is_not, now.values(), before.values()))
        return isinstance(now, list) and any(map(_operator.is_not, now, before))


class Change:
    """The difference between a container and its copy."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        before = watched.copy
        now = watched.container
        self._old = before.copy()
        self._new = now.copy()
        self._around: tuple[list[Any], list[Any]] | None = None
        """Entries that were put before and behind the entries of a list; None: the list was changed
        in another way.
        """
        if isinstance(now, list):
            places = range(len(now) - len(before) + 1)
            first = next((at for at in places if all(map(_operator.is_, before, now[at:]))), -1)
            if first >= 0:
                self._around = now[:first], now[first + len(before) :]
        elif isinstance(now, set):
            self._old = before - now
            self._new = now - before
        else:
            missing = object()
            self._old = {
                key: value for key, value in before.items() if now.get(key, missing) is not value
            }
            self._new = {
                key: value for key, value in now.items() if before.get(key, missing) is not value
            }

    def redo(self, noted: bool = True) -> None:
        """`noted`: change the copy, too."""
        self._replace(self._old, self._new, noted)

    def undo(self, noted: bool = True) -> None:
        self._replace(self._new, self._old, noted)

    def _replace(self, old: Any, new: Any, noted: bool) -> None:
        watched = self._watched
        around = self._around
        both = noted and watched.copy is not None
        for container in (watched.container, watched.copy) if both else (watched.container,):
            if isinstance(container, set):
                container -= old
                container |= new
            elif isinstance(container, dict):
                for key in old:
                    if key not in new:
                        container.pop(key, None)
                container.update(new)
            elif around is None:
                container[:] = new
            elif new is self._new:
                container[:] = around[0] + container + around[1]
            else:
                container[:] = container[len(around[0]) : len(container) - len(around[1])]


def containers(modules: Iterable[ModuleType]) -> Iterator[Any]:
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


# --- all imports


class Hidden:
    """A finder of hidden modules. While it learns, it hides what is imported;
    in a rank it gives it back.
    """

    def __init__(self, at_start: frozenset[str]) -> None:
        """`at_start`: names in sys.modules that every process has."""
        self.groups: list[ModuleGroup] = []
        # gets the groups that an import restored
        self.on_return: Callable[[list[ModuleGroup]], None] | None = None
        self._at_start = at_start
        self._environment = dict(os.environ)
        self._group_of: dict[str, ModuleGroup] = {}
        self._specs: dict[str, Any] = {}
        self._order: dict[str, int] = {}
        self._now = 0
        self._learning = True
        self._lock = _thread.RLock()
        for name in [name for name in sys.modules if not self._stays(name)]:
            del sys.modules[name]  # __future__, _operator: another copy does no harm
        self._owned = {
            id(sys.modules),
            id(sys.path),
            id(sys.path_importer_cache),
            id(vars(os.environ)["_data"]),
        }
        sys.meta_path.insert(0, self)
        self._start = ModuleGroup()
        self._start.watched = self._containers(
            [sys.modules[name] for name in at_start - {"__main__"}]
        )
        # imports that have not ended, the innermost one last; the first: this process
        self._running = [ModuleGroup()]
        atexit: Any = sys.modules.get("atexit") or self.module("atexit")
        self._atexit = atexit
        self._register = atexit.register
        atexit.register = self._record_call_at_exit
        for watched in [watched for group in self.groups for watched in group.watched]:
            watched.copy = watched.container.copy()  # the change above is no effect of an import

    def names(self) -> Iterable[str]:
        return self._group_of

    # --- learning, in the pool

    def in_order(self, names: list[str]) -> Iterator[str]:
        """The names to learn. `names` are in the order in which their imports ended in an earlier
        job. A module that imports a module whose import ended later is part of an import cycle: it
        may fail if it is imported first, and is learned with the later module. A module that its
        own package imports is learned with the package."""
        self._order = {name: number for number, name in enumerate(names)}
        for name, number in self._order.items():
            self._now = number
            packages = [name[:place] for place, letter in enumerate(name) if letter == "."]
            if name not in self._group_of and all(
                self._order.get(package, 0) < number for package in packages
            ):
                yield name

    def learn(self, name: str, judge: Callable[[str], None] | None = None) -> None:
        """Import a module as a fresh process does, and hide it. `judge` is called
        before that, and may raise.
        """
        outer = self._running[-1]
        group = ModuleGroup(name.partition(".")[0])
        self._suspend(outer)
        self._running.append(group)
        group.visible = True
        try:
            builtins.__import__(name)
            if judge:
                judge(name)
            group.watched = self._containers(
                [*self._own(group).values(), *self._replaced(group).values()]
            )
        except BaseException as error:
            self._suspend(group)
            self._running.pop()
            # Also names that are no longer in sys.modules: the import system removes the name of a
            # module that failed.
            self._group_of = {
                known: its for known, its in self._group_of.items() if its is not group
            }
            self._resume(outer)
            # a failed import leaves in sys.modules what it has imported
            if not isinstance(error, Later):
                for needed in group.needs:
                    self._apply(needed)
                sys.modules.update(group.modules)
            raise
        self._suspend(group)
        self._running.pop()
        group.standard = any(map(is_standard, group.modules.values()))
        self.groups.append(group)
        self._resume(outer)

    def end_learning(self) -> None:
        """Learn nothing from now on. What this process imports later is taken away
        from a rank all the same.
        """
        self._learning = False
        self._atexit.register = self._register
        for group in self.groups:
            for watched in group.watched:
                watched.copy = None
            group.watched = []

    def _suspend(self, group: ModuleGroup) -> None:
        """Note what the import has done so far, and take it away with all that it needs."""
        group.visible = False
        group.modules = self._own(group)
        group.replaced = self._replaced(group)
        visible = [self._start, *group.needs]
        group.changes = [
            Change(held) for one in visible for held in one.watched if held.has_changed()
        ]
        given = dict(self._environment)
        for needed in group.needs:
            given.update(needed.variables)
        group.variables = {
            name: value for name, value in os.environ.items() if given.get(name) != value
        }
        for change in reversed(group.changes):
            change.undo(noted=False)
        self._take_away([name for name in sys.modules if not self._stays(name)], group.needs)
        if group is not self._running[0]:
            self._group_of.update(dict.fromkeys(group.modules, group))

    def _own(self, group: ModuleGroup) -> dict[str, Any]:
        """Modules in sys.modules that the import itself has loaded."""
        restored = {name for needed in group.needs for name in needed.modules}
        return {
            n: module
            for n, module in sys.modules.items()
            if n not in restored and not self._stays(n)
        }

    def _replaced(self, group: ModuleGroup) -> dict[str, Any]:
        """Modules that the import has put in the place of modules that it needs, as transformers
        does with itself.
        """
        before: dict[str, Any] = {}
        for needed in group.needs:
            before.update({**needed.modules, **needed.replaced})
        return {
            n: sys.modules[n]
            for n, module in before.items()
            if sys.modules.get(n, module) is not module
        }

    def _containers(self, modules: Iterable[ModuleType]) -> list[Watched]:
        """Return the containers of these modules and their classes that no earlier module owns."""
        found = []
        for container in containers(modules):
            if id(container) not in self._owned:
                self._owned.add(id(container))
                found.append(Watched(container))
        return found

    def _take_away(self, modules: Iterable[str], groups: list[ModuleGroup]) -> None:
        for name in modules:
            del sys.modules[name]
        for group in reversed(groups):
            group.visible = False
            for change in reversed(group.changes):
                change.undo()
        for name in [name for name in os.environ if name not in self._environment]:
            del os.environ[name]
        os.environ.update(self._environment)
        _forget_cached()

    def _resume(self, group: ModuleGroup) -> None:
        group.visible = True
        needs = group.needs
        group.needs = []
        for needed in needs:
            self._apply(needed)
        sys.modules.update({**group.modules, **group.replaced})
        for change in group.changes:
            change.redo(noted=False)
        os.environ.update(group.variables)
        _forget_cached()

    def _record_call_at_exit(
        self, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> Any:
        """Takes the place of atexit.register, also for packages that keep a reference to it. A call
        of the standard library belongs to its module, which makes it once in a process; but for
        importlib: it calls compiled ones."""
        if len(self._running) == 1 or not self._learning:
            return self._register(function, *arguments, **named)
        caller = self._group_of.get(sys._getframe(1).f_globals.get("__name__", ""))
        group = (
            caller
            if caller is not None and caller.standard and caller.root != "importlib"
            else self._running[-1]
        )
        group.callbacks.append((function, arguments, named))
        return function

    # --- giving back

    def hide(self, environment: dict[str, str]) -> None:
        """Take away all that was imported by this process, which has
        this environment from now on.
        """
        others = [name for name in sys.modules if name not in self._at_start]
        self._environment = environment
        # a fork waits for a thread that restores a module: in the child nothing would release the
        # lock. The import lock is taken before it, as by a thread that searches a module; a fork
        # would otherwise take it afterwards
        for acquire, release in (
            (self._lock.acquire, self._lock.release),
            (_imp.acquire_lock, _imp.release_lock),
        ):
            os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)
        self._atexit._clear()
        self._take_away(others, self._running[0].needs)
        self._running[0].needs = []
        for watched in self._start.watched:
            if watched.has_changed():
                Change(watched).undo()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self._specs:
            return self._specs.pop(name)
        if name in self._group_of:
            group = self._group_of[name]
            with self._lock:  # another thread may be restoring it
                if group.visible and name not in sys.modules:
                    return None
            module = group.modules[name]
            return _Loader(self, name, getattr(module, "__spec__", None), module).spec()
        root = name.partition(".")[0]
        if not self._learning or root == OURS:
            return None
        if root in [group.root for group in self._running]:
            if self._order.get(name, 0) > self._now and not self._has_compiled():
                raise Later
            return None  # a module of the same package: it belongs to the group
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None:
                return _Loader(self, name, spec).spec()
        return None

    def _has_compiled(self) -> bool:
        """True if an import that has not ended has loaded a compiled module. Few compiled modules,
        and none of torch, can be loaded once more in one process."""
        running = [*self._own(self._running[-1]).values()]
        running += [module for group in self._running[1:-1] for module in group.modules.values()]
        return any(
            str(getattr(getattr(each, "__spec__", None), "origin", "")).endswith(".so")
            for each in running
        )

    def module(self, name: str, spec: Any = None) -> Any:
        """A module that is known, or is learned now. `spec`: where it was found."""
        if name not in self._group_of:
            if spec is not None:
                self._specs[name] = spec
            self.learn(name)
        return self._group_of[name].modules[name]

    def restore(self, name: str) -> None:
        """Restore the module's group, and every group that it depends on."""
        with self._lock:
            restored = self._running[-1].needs
            count = len(restored)
            self._apply(self._group_of[name])
            if self.on_return:
                self.on_return(restored[count:])

    def _apply(self, group: ModuleGroup) -> None:
        if group.visible:
            return
        group.visible = True
        for needed in group.needs:
            self._apply(needed)
        for name, module in group.modules.items():
            sys.modules.setdefault(
                name, sys.modules["__main__"] if name == "__mp_main__" else module
            )
        sys.modules.update(group.replaced)
        for change in group.changes:
            change.redo()
        for name, module in group.modules.items():
            package, _, child = name.rpartition(".")
            place = sys.modules.get(package)
            known = self._group_of.get(package)
            if place is not None and known and place is not known.modules[package]:
                setattr(place, child, module)  # it has taken the place of its package
                vars(known.modules[package]).pop(child, None)
        for name, value in group.variables.items():
            os.environ.setdefault(name, value)
        if not self._learning:
            for function, arguments, named in group.callbacks:
                self._register(function, *arguments, **named)
        _filters_changed()
        self._running[-1].needs.append(group)

    def _stays(self, name: str) -> bool:
        return name in self._at_start or name.partition(".")[0] == OURS


class Later(BaseException):
    """The module must be learned with one that follows it."""


class _Loader:
    """Loader of a hidden module, or of one that is learned when it is loaded (`module` None)."""

    def __init__(self, hidden: Hidden, name: str, spec: Any, module: Any = None) -> None:
        self._hidden = hidden
        self._name = name
        self._spec = spec
        self._module = module
        self._names = _names_of_import(module)

    def create_module(self, spec: Any) -> Any:
        del spec
        if self._module is None:
            self._module = self._hidden.module(self._name, self._spec)
            self._spec = getattr(self._module, "__spec__", None)
            self._names = _names_of_import(self._module)
        return self._module

    def exec_module(self, module: Any) -> None:
        names = getattr(module, "__dict__", {})
        for name in _SET_BY_AN_IMPORT:  # the import system has set others
            names.pop(name, None)
        names.update(self._names)
        self._hidden.restore(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # readers of resources

    def spec(self) -> Any:
        """Make the spec that the import system and callers of importlib.util.find_spec get."""
        loader: Any = self
        spec = type(sys.__spec__)(self._name, loader)
        for attribute in ("origin", "has_location", "cached", "submodule_search_locations"):
            setattr(spec, attribute, getattr(self._spec, attribute, None))
        return spec


def _names_of_import(module: ModuleType) -> dict[str, Any]:
    names = getattr(module, "__dict__", {})
    return {name: names[name] for name in _SET_BY_AN_IMPORT if name in names}


def _filters_changed() -> None:
    """Invalidate the caches of the warnings module after a change of its list of filters."""
    for name in ("_filters_mutated", "_filters_mutated_lock_held"):
        if hasattr(_warnings, name):
            getattr(_warnings, name)()
            return


def _forget_cached() -> None:
    """Make the next search for a codec an import again, which it is in a fresh process."""
    _filters_changed()
    if hasattr(_codecs, "unregister"):  # new in 3.10
        _codecs.unregister(encodings.search_function)
        _codecs.register(encodings.search_function)


def is_standard(module: ModuleType) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    if origin in ("built-in", "frozen"):
        return True
    return (
        isinstance(origin, str)
        and origin.startswith(STANDARD)
        and "-packages" + os.sep not in origin
    )
