"""Lets functions run the first import of torch and of its part for distributed jobs."""

from __future__ import annotations

import sys

from client_lib.worker.rank_runner.frames import HIDDEN
from client_lib.worker.rank_runner.process_groups import import_distributed
from client_lib.worker.rank_runner.torch_import import import_torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    _Import = Callable[[Any, Callable[[Any], None]], None]
    """Gets the module and the loader's exec_module."""

HIDDEN.append(globals())


def hook_imports() -> None:
    """Let our functions run the imports of torch and of its part for distributed jobs."""
    of: dict[str, _Import] = {
        "torch": import_torch,
        "torch.distributed.distributed_c10d": import_distributed,
    }
    sys.meta_path.insert(0, _Hooks(of))


class _Hooks:
    """A finder that lets a function run the first import of some modules. Other
    finders find these modules.
    """

    def __init__(self, of: dict[str, _Import]) -> None:
        self._of = of
        self._searched: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._of or name in self._searched:
            return None
        self._searched.add(name)  # another finder may search all of them, too
        try:
            found = (
                finder.find_spec(name, path, target)
                for finder in list(sys.meta_path)
                if finder is not self
            )
            spec: Any = next((each for each in found if each is not None), None)
        finally:
            self._searched.discard(name)
        if hasattr(getattr(spec, "loader", None), "__dict__"):
            self._hook(name, spec.loader)
        return spec

    def _hook(self, name: str, loader: Any) -> None:
        """Change the loader's next exec_module, unless another import is the first."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if name in self._of:
                self._of[name](module, loader.exec_module)
                # only now: an import that fails, as in the warm pool, is repeated
                self._of.pop(name, None)
            else:
                loader.exec_module(module)

        loader.exec_module = exec_module
