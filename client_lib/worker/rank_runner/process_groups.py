"""Wraps the functions of torch.distributed that begin and end process groups."""

from __future__ import annotations

import os
import sys

from client_lib.worker.rank_runner.collectives import begin_entries
from client_lib.worker.rank_runner.error_file import write_error_file
from client_lib.worker.rank_runner.frames import HIDDEN
from client_lib.worker.rank_runner.master import refuse_own_master, wait_for_master
from client_lib.worker.rank_runner.world import tell_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HIDDEN.append(globals())
_kept: list[Any] = []
"""Process groups, kept to the end of the process: gloo's threads race with a teardown."""


def import_distributed(module: Any, load: Callable[[Any], None]) -> None:
    """Import the module, and wrap two of its functions.

    init_process_group: wait for the master before the call, keep the groups that it makes, and
    tell the launcher of a group of fewer ranks than the job has.
    destroy_process_group: if an exception has led to the call, write the error file before it. The
    call may take long or hang, and a rank that is killed meanwhile prints no traceback."""
    import functools

    load(module)
    init = getattr(module, "init_process_group", None)
    destroy = getattr(module, "destroy_process_group", None)
    size_of_group = getattr(module, "get_world_size", lambda: 0)
    if init is None or destroy is None:
        return

    @functools.wraps(init)
    def init_process_group(
        backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("store") is None:
            refuse_own_master(init_method or "env://")
            if init_method in (None, "env://"):
                wait_for_master()
        result = init(backend, init_method, *args, **kwargs)
        keep_process_groups(module)
        tell_group(size_of_group())
        begin_entries()
        return result

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        path = write_error_file(error) if error is not None else None
        try:
            destroy(*args, **kwargs)
        finally:
            try:
                os.unlink(path or "")
            except OSError:  # it was not written, or the worker's directory was removed
                pass

    module.init_process_group = init_process_group
    module.destroy_process_group = destroy_process_group


def keep_process_groups(module: Any) -> None:
    """Keep the groups that torch lists in `_world`; before 2.0, in a table of the module."""
    world = getattr(module, "_world", None)
    _kept.extend(world.pg_map if world else getattr(module, "_pg_map", ()))
