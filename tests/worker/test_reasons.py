"""The launcher's copies of reasons, which a pod has without pydantic."""

import ast
from pathlib import Path

import client_lib.worker
from client_lib import launcher_protocol
from client_lib.launcher_protocol import reasons
from client_lib.spec.states import Reason

NAMES = {reason.name: reason.value for reason in Reason}


def test_every_reason_has_name_and_text_of_the_wire() -> None:
    ours = {name: value for name, value in vars(reasons).items() if name.isupper()}
    assert ours
    assert ours.items() <= NAMES.items()


def test_no_other_module_has_a_copy() -> None:
    """A reason is written as text in `reasons` alone."""
    folders = [
        Path(package.__file__ or "").parent for package in (client_lib.worker, launcher_protocol)
    ]
    texts = set(NAMES.values())
    found = []
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in texts:
                found.append(path.name)
    assert set(found) == {"reasons.py"}
