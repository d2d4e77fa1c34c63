"""docs/mlspace.md names all that a user of the platform may look for. That its tables are true is in test_project."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import client_lib
from client_lib.mlspace import environment
from client_lib.spec.mlspace import REFUSED_TYPES

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "mlspace.md").read_text()


def test_every_name_of_the_room_is_explained() -> None:
    names = [name for name in client_lib.__all__ if client_lib._MODULE.get(name, "").startswith("mlspace.")]
    assert len(names) == 22
    assert [name for name in names if not re.search(rf"`(client_lib\.)?{name}\b", DOCUMENT)] == []


def test_every_variable_of_the_platform_s_notebooks_is_named() -> None:
    variables = re.findall(r'get\("(\w+)"\)', inspect.getsource(environment))
    assert len(variables) == 7
    assert [name for name in variables if f"`{name}`" not in DOCUMENT] == []


def test_every_refused_type_is_explained() -> None:
    assert [kind for kind in REFUSED_TYPES if kind not in DOCUMENT.split("## What is refused")[1]] == []


def test_its_example_is_a_job() -> None:
    code = DOCUMENT.split("```python\n")[1].split("```")[0].split("job.submit()")[0]
    made: dict[str, client_lib.Job] = {}
    exec(code, made)
    assert made["job"].spec.region == "SR006"
