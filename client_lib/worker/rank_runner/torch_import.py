"""Imports torch without garbage collection, and lets its optimizers be observed."""

from __future__ import annotations

from client_lib.worker.rank_runner.frames import HIDDEN
from client_lib.worker.rank_runner.open_files import BEFORE_TORCH, open_files
from client_lib.worker.rank_runner.step_hooks import observe_optimizers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HIDDEN.append(globals())


def import_torch(module: Any, load: Callable[[Any], None]) -> None:
    """Import torch. The import makes half a million objects and no garbage: collections would take
    0.4 s and free nothing."""
    import gc

    enabled = gc.isenabled()
    gc.disable()
    BEFORE_TORCH.extend(open_files())
    try:
        load(module)
        observe_optimizers(module)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
