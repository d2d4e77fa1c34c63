"""Tells the launcher how the script of this rank ended: the place of an exit in a loop, and the
collectives that it made, with their places in the script.

Ranks that did not make the same collectives wait for each other, or lose each other. The launcher's
report has what each has told, and the server compares them.
"""

from __future__ import annotations

import os
import sys

from client_lib.worker.rank_runner.collectives import is_sending
from client_lib.worker.rank_runner.this_rank import THIS_RANK, own_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_PLACES_MAX = 64
"""Most places; the rarest are told. As in `client_lib.launcher_protocol.script_end`."""
_LIBRARIES = (
    "site-packages",
    "dist-packages",
    "rank_runner",
    "<frozen ",
    os.path.dirname(os.__file__),
)
"""Parts of the paths of files that are not the user's."""
_WRAPPERS = ("wrapper", "decorate_context", "inner")
"""Names of functions of torch that wrap the function which the script called."""


def tell_script_end() -> None:
    """Write the file of this rank, if there is something to tell."""
    try:
        told = _collectives() if is_sending() else {}
        if THIS_RANK.exited_at:
            told["exited_at"] = THIS_RANK.exited_at
        if told:
            import json

            with open(own_file("ended-"), "w") as file:
                json.dump(told, file)
    # the recorder's functions are private: another torch may have others; or there is no folder
    except Exception:  # noqa: BLE001
        pass


def _collectives() -> dict[str, Any]:
    """The group in which this rank made most collectives, their number, and the places of the
    newest ones."""
    groups: dict[str, dict[int, Any]] = {}
    for entry in [each for dump in _recorder_with_stacks() for each in dump["entries"]]:
        if not entry["is_p2p"]:
            backend = entry["profiling_name"].partition(":")[0]
            of_group = groups.setdefault("%s:%s" % (backend, entry["process_group"][0]), {})
            of_group.setdefault(entry["collective_seq_id"], entry)
    group = max(groups, key=lambda name: len(groups[name]), default="")
    if not group:
        return {}
    places: dict[str, int] = {}
    for entry in groups[group].values():
        place = _place_of(entry["frames"], entry["profiling_name"].rpartition(":")[2])
        places[place] = places.get(place, 0) + 1
    rarest = sorted(places, key=lambda place: places[place])[:_PLACES_MAX]
    return {
        "group": group,
        "collectives": max(groups[group]),
        "places": {place: places[place] for place in rarest},
    }


def _place_of(frames: list[Any], name: str) -> str:
    """`barrier in save_checkpoint (train.py:12)`: the function of torch that the script called, and
    the line of the script. `frames`: innermost first; `name`: of the collective."""
    called = name
    for frame in frames:
        if _is_own(frame["filename"]):
            within = "" if frame["name"] == "<module>" else " in %s" % frame["name"]
            line = "%s:%d" % (os.path.basename(frame["filename"]), frame["line"])
            return "%s%s (%s)" % (called, within, line)
        if frame["name"] not in _WRAPPERS and not frame["name"].startswith("_"):
            called = frame["name"]
    return name


def _is_own(path: str) -> bool:
    return not any(part in path for part in _LIBRARIES)


def _recorder_with_stacks() -> list[Any]:
    """Read PyTorch's flight recorder, and NCCL's, with the stack of each collective."""
    import pickle

    recorder = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(recorder, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")]
    torch = vars(sys.modules["torch"])
    # the recorder asks torch for the frames of compiled code, and torch would import its compiler,
    # which takes seconds, to say that there are none
    is_compiled = "torch._inductor" in sys.modules
    if not is_compiled:
        torch["_inductor"] = None
    try:
        return [
            pickle.loads(dump(includeCollectives=True, includeStackTraces=True, onlyActive=False))
            for dump in dumps
            if dump
        ]
    finally:
        if not is_compiled:
            torch.pop("_inductor", None)


# --- an exit of the script


def note_exit(exit: SystemExit) -> None:
    """Note the place of an exit with code 0 that left a loop: the script did not run to its end."""
    if exit.code in (None, 0) and is_sending():
        THIS_RANK.exited_at = place_in_loop(exit.__traceback__)


def place_in_loop(trace: TracebackType | None) -> str:
    """The last line of the user in a traceback, as `train.py:7`; "": none of its lines of the user
    stands in a loop, as of `sys.exit(main())`."""
    place = ""
    is_in_loop = False
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if _is_own(path):
            place = "%s:%d" % (os.path.basename(path), trace.tb_lineno)
            is_in_loop = is_in_loop or _is_line_in_loop(path, trace.tb_lineno)
        trace = trace.tb_next
    return place if is_in_loop else ""


def _is_line_in_loop(path: str, number: int) -> bool:
    """True if a line of a file stands in a `for` or `while`."""
    import ast

    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # there is no source, as for a cell of a notebook
        return False
    loops = [node for node in ast.walk(tree) if type(node).__name__ in ("For", "While", "AsyncFor")]
    return any(loop.lineno <= number <= (loop.end_lineno or 0) for loop in loops)  # type: ignore[attr-defined]
