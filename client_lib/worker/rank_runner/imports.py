"""Writes the names of the modules that a script has imported, from which the warm pool learns."""

from __future__ import annotations

import os
import sys

from client_lib.worker.rank_runner.this_rank import THIS_RANK


def note_imports() -> None:
    """Write the names of installed modules, in the order in which their imports ended, if
    the launcher requests it.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or os.getpid() != THIS_RANK.pid:
        return
    path = os.path.join(os.environ.get("CLIENT_LIB_WORKER_DIR", ""), "imports")
    try:
        with open(path, "r+") as file:
            import json

            modules = list(sys.modules.items())
            specs = {name: getattr(module, "__spec__", None) for name, module in modules}
            named = [name for name, spec in specs.items() if getattr(spec, "name", None) == name]
            origins = {name: str(getattr(specs[name], "origin", None)) for name in named}
            json.dump([name for name in named if "-packages/" in origins[name]], file)
    except Exception:  # noqa: BLE001  (there is no file: not requested; or a lazy module fails)
        pass
