"""A call as a file, which every rank reads by `client_lib.worker.function_runner`.

Loads cloudpickle, which no other part of a submit needs.
"""

import base64
import hashlib
import heapq
import io
import json
import linecache
import math
import os
import site
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import IO, Any, cast

import cloudpickle

from client_lib.durable import megabytes
from client_lib.errors import (
    InvalidRequest,
    TooLarge,
)
from client_lib.functions.call import Call, ResultOf
from client_lib.spec.request import FunctionCode
from client_lib.worker.function_runner import PROTOCOL, here

LIMIT_BYTES = 2 * 2**30  # the server's own bound has the same default
_LARGEST = 5
_SOURCE_MAX = 10**6
_registry = threading.Lock()  # cloudpickle's list of modules to send by value is the process's


@contextmanager
def written(
    call: Call, root: str | None, limit_bytes: int = LIMIT_BYTES
) -> Iterator[tuple[Path, FunctionCode]]:
    """The call in a temporary file. `root`: the folder of the snapshot that travels with it, None:
    it runs in place.

    Raises:
        TooLarge: more than `limit_bytes`; names the largest things that the function needs.
        InvalidRequest: a part of the call can't be pickled.
    """
    versions = here(cloudpickle.__version__)
    header = {
        "protocol": PROTOCOL,
        "name": call.name,
        **versions,
        "cloudpickle_zip": base64.b64encode(_zipped_cloudpickle()).decode("ascii"),
        "sys_path": _path_entries(root),
        "fill": call.fill,
    }
    with tempfile.NamedTemporaryFile(prefix="client-lib-", suffix=".function") as file:
        bounded = _Counted(limit_bytes, file)
        with _by_value(_modules_elsewhere(root) if root is not None else []):
            try:
                bounded.write(json.dumps(header).encode() + b"\n")
                found = _Finder(_Counted())
                found.dump((call.function, call.args, call.kwargs))
                sources = _sources(found.sources, root is not None)
                needs = {"function": call.function, "main": found.main, "sources": sources}
                # relative imports inside of its functions, where it was run by `python -m`
                if found.main:
                    needs["package"] = vars(sys.modules["__main__"]).get("__package__")
                pickler = _Pickler(bounded)
                pickler.dump(needs)
                pickler.dump((call.args, call.kwargs))
            except _Full:
                limit = (
                    f"{call.name} with what it needs is larger than the {megabytes(limit_bytes)} "
                    "that may travel"
                )
                raise too_large(call, limit) from None
            except OSError:  # the disk is full
                raise
            except Exception as error:  # pickling runs the code of any class
                culprits = [name for name, value in _parts(call) if _size(value) is None]
                raise InvalidRequest(
                    f"{', '.join(culprits)}{' of ' if culprits else ''}{call.name} can't be "
                    f"pickled: {type(error).__name__}: {error}",
                    hint="make locks, files, connections and the like inside the function",
                ) from error
        file.flush()
        code = FunctionCode(
            sha256=bounded.digest.hexdigest(),
            size=bounded.size,
            name=call.name,
            python=".".join(map(str, versions["python"])),
            cloudpickle=versions["cloudpickle"],
        )
        yield Path(file.name), code


@cache
def _zipped_cloudpickle() -> bytes:
    """The source of cloudpickle, as sys.path takes it: for images without it. 15 kB."""
    folder = Path(str(cloudpickle.__file__)).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.glob("*.py")):
            # without the file's time, so that equal calls give equal bytes
            entry = zipfile.ZipInfo(f"{folder.name}/{file.name}")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return packed.getvalue()


def _sources(names: set[str], elsewhere: bool) -> dict[str, str]:
    """The text of files that workers can't read, for tracebacks: cells of a notebook;
    all if they are `elsewhere`.
    """
    texts = {
        name: "".join(linecache.getlines(name))
        for name in names
        if elsewhere or not os.path.exists(name)
    }
    return {name: text for name, text in texts.items() if 0 < len(text) <= _SOURCE_MAX}


@contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    if not modules:
        yield
        return
    with _registry:
        already = cloudpickle.list_registry_pickle_by_value()
        new = [
            module
            for module in modules
            if module.__name__ not in already and module.__name__ in sys.modules
        ]
        for module in new:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in new:
                cloudpickle.unregister_pickle_by_value(module)


class _Full(Exception):
    pass


class _Counted:
    """Counts the bytes written, at most `limit`; computes their digest and passes
    them on if there is a `file`.
    """

    def __init__(self, limit: float = math.inf, file: Any = None) -> None:
        self._file = file
        self._limit = limit
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self.size += size
        if self.size > self._limit:
            raise _Full
        if self._file:
            self.digest.update(data)
            self._file.write(data)
        return size


def too_large(call: Call, limit: str) -> TooLarge:
    """The error with the largest parts of the payload. `limit`: a
    sentence without its full stop.
    """
    largest = heapq.nlargest(_LARGEST, ((_size(value) or 0, name) for name, value in _parts(call)))
    return TooLarge(
        f"{limit}. The largest:\n"
        + "\n".join(f"  {megabytes(size):>12}  {name}" for size, name in largest),
        hint="put data into a file that the workers can read, and load it inside the function",
    )


def _parts(call: Call) -> Iterator[tuple[str, Any]]:
    """Everything that travels with the function, with the words that a user knows it by."""
    for place, value in enumerate(call.args):
        yield f"argument {place}", value
    for name, value in call.kwargs.items():
        yield f"argument {name!r}", value
    function = getattr(call.function, "__func__", call.function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield f"variable {name!r} around the function", cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__ and not isinstance(function.__globals__[name], ModuleType):
            yield f"global {name!r}", function.__globals__[name]


def _size(value: object) -> int | None:
    """Bytes of the pickled value; None: it can't be pickled."""
    counted = _Counted()
    with suppress(Exception):  # pickling runs the code of any class
        _Pickler(counted).dump(value)
        return counted.size
    return None


# --- pickling

_DATA = frozenset(
    {"Tensor", "Parameter", "UntypedStorage", "ndarray", "DataFrame", "Series", "Table"}
)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """Pickles for a worker. Several calls of `dump` share a memo, as one
    Unpickler's calls of `load` do.
    """

    def __init__(self, file: _Counted) -> None:
        super().__init__(cast(IO[bytes], file))
        self.main: dict[str, Any] = {}
        """Functions and classes of `__main__` that were pickled by value, by their names."""
        self.sources: set[str] = set()
        """Files that the code of functions comes from that were pickled by value."""
        self._main = vars(sys.modules["__main__"])
        self.globals_ref = {id(self._main): _MainNamespace()}

    def persistent_id(self, obj: object) -> Any:
        return (obj.place, obj.job) if type(obj) is ResultOf else None

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, FunctionType | type) and getattr(obj, "__module__", None) == "__main__":
            name = obj.__qualname__
            if name.isidentifier() and (self._main.get(name) is obj or name not in self.main):
                self.main[name] = obj
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and reduced is not NotImplemented:
            self.sources.add(obj.__code__.co_filename)
        return reduced


class _Finder(_Pickler):
    """Finds what of `__main__` is in the arguments, and writes no data of theirs."""

    def persistent_id(self, obj: object) -> Any:
        kind = type(obj)
        return (
            "data"
            if kind is ResultOf or kind.__name__ in _DATA or kind in (bytes, bytearray)
            else None
        )


class _MainNamespace:
    """In a pickle: the namespace of whichever `__main__` reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return vars, (sys.modules["__main__"],)


# --- the caller's own modules


def _path_entries(root: str | None) -> list[str]:
    """The caller's own entries of sys.path, which belong to no installation. `root`: the root of a
    snapshot; entries are then relative to the root, and entries outside are left out. None: in
    place, with absolute entries."""
    own = [os.path.abspath(entry) for entry in sys.path if not _installed(os.path.abspath(entry))]
    if root is None:
        return list(dict.fromkeys(own))
    inside = [os.path.realpath(entry) for entry in own if _below(os.path.realpath(entry), root)]
    return list(dict.fromkeys(os.path.relpath(entry, root) for entry in inside))


def _modules_elsewhere(root: str) -> list[ModuleType]:
    """Top-level modules of the caller's that lie neither in the snapshot's
    folder nor in an installation.
    """
    found = []
    for name, module in list(sys.modules.items()):
        if "." in name or name in ("__main__", "__mp_main__", "client_lib"):
            continue
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):  # of C, for example
            continue
        path = os.path.abspath(file)
        if not _installed(path) and not _below(os.path.realpath(path), root):
            found.append(module)
    return found


def _installed(path: str) -> bool:
    return any(_below(path, folder) for folder in _installations())


@cache
def _installations() -> tuple[str, ...]:
    """Folders of the interpreter and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [
        os.path.join(sys.base_prefix, folder) for folder in dict.fromkeys((sys.platlibdir, "lib"))
    ]
    return tuple(dict.fromkeys(map(os.path.abspath, found)))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
