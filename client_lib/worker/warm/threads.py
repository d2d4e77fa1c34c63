"""Thread counts of libraries that were loaded before the rank's environment was known. Standard library, >= 3.8."""

import ctypes
import os
import re
from typing import Any, Callable, Dict, List

_LIBRARY = re.compile(r"/[^/]*(gomp|iomp5|libomp|openblas)[^/]*\.so[^/]*$")
_SETTERS = (
    "omp_set_num_threads",
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
Setter = Callable[[int], Any]


class Setters:
    """Of what is loaded when this is made."""

    def __init__(self) -> None:
        self._openmp: List[Setter] = []
        self._blas: List[Setter] = []
        for path in _loaded():
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                if hasattr(library, name):
                    (self._openmp if name.startswith("omp") else self._blas).append(getattr(library, name))

    def apply(self, environment: Dict[str, str]) -> None:
        """Set what a fresh process with this environment would have."""
        openmp = environment.get("OMP_NUM_THREADS")
        blas = environment.get("OPENBLAS_NUM_THREADS", openmp)
        for setters, count in ((self._openmp, openmp), (self._blas, blas)):
            for setter in setters if count else ():
                setter(min(int(count or 1), len(os.sched_getaffinity(0))) if setters is self._blas else int(count or 1))


def set_torch(torch: Any, environment: Dict[str, str]) -> None:
    """torch keeps a count of its own, for all threads; it takes MKL's, which is no larger than the cores."""
    count = int(environment.get("MKL_NUM_THREADS") or environment.get("OMP_NUM_THREADS") or 0)
    if torch.backends.mkl.is_available() and environment.get("MKL_DYNAMIC", "").lower() not in ("false", "0"):
        count = min(count, _cores() or count)
    if count and count != torch.get_num_threads():
        torch.set_num_threads(count)


def _cores() -> int:
    """Physical ones that this process may use; 0: not known."""
    found = set()
    for cpu in os.sched_getaffinity(0):
        try:
            with open("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu, encoding="ascii") as file:
                found.add(file.read())
        except OSError:
            return 0
    return len(found)


def _loaded() -> List[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").split(None, 5)[-1] for line in file}
    return sorted(path for path in paths if _LIBRARY.search(path))
