"""Joins the modules of `rank_runner` into the one file that the interpreter of a rank runs.

So that their texts can stand one below the other, these modules import names of each other with
`from client_lib.worker.rank_runner.MODULE import NAME` alone, from modules above them in MODULES,
and no two define the same name. A value that changes is an attribute of an object, or is used in
one module alone.

Every rank compiles the file before its script starts. So modules that few ranks need are in the
file as a text, which `rank_runner.late` executes in the names of the file.
"""

import os
from typing import List, Set

MODULES = (
    "this_rank",
    "error_file",
    "unwinding",
    "answers",
    "pipes",
    "frames",
    "open_files",
    "late",
    "device_values",
    "norms",
    "planned_steps",
    "optimizer_steps",
    "step_hooks",
    "torch_import",
    "collectives",
    "master",
    "world",
    "process_groups",
    "hooks",
    "imports",
    "script_end",
    "teardown",
    "main",
)
"""All modules of `rank_runner`, each below the modules that it imports."""

LATE_MODULES = ("device_values", "norms", "planned_steps", "optimizer_steps")
"""The modules that are a text in the file."""
_PACKAGE = "client_lib.worker.rank_runner"
_FUTURE = "from __future__ import annotations\n"


def joined_rank_runner() -> bytes:
    """The text of the file. Every rank compiles the text, so it has no import twice, and no import
    for type checkers. Raises OSError in a zipapp, which has the joined file and not its parts."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_runner")
    imports: Set[str] = set()
    bodies: List[str] = []
    late: List[str] = []
    for name in MODULES:
        with open(os.path.join(folder, name + ".py"), encoding="utf-8") as file:
            body = _without_imports(list(file), imports)
        text = "\n\n# --- %s\n\n%s\n" % (name, body.strip())
        (late if name in LATE_MODULES else bodies).append(text)
    head = '"""The modules of %s, joined."""\n\n' % _PACKAGE
    texts = "\n\nLATE = %r\n" % "".join(late)
    return "".join([head, _FUTURE, "\n", *sorted(imports), texts, *bodies]).encode()


def _without_imports(lines: List[str], imports: Set[str]) -> str:
    """The text of a module. Adds its imports of the standard library to `imports`."""
    kept: List[str] = []
    skipping = False  # the rest of a statement
    for line in lines:
        if skipping and line.startswith((" ", ")", "\n")):
            continue
        skipping = line.startswith(("from " + _PACKAGE, "if TYPE_CHECKING:"))
        if line.startswith("import "):
            imports.add(line)
        elif not skipping and line != _FUTURE and not line.startswith("TYPE_CHECKING"):
            kept.append(line)
    return "".join(kept)
