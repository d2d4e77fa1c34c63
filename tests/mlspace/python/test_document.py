"""docs/mlspace.md names all that a user of the platform may look for. That its tables
are true is in test_project.
"""

import inspect
import re
from pathlib import Path

import client_lib
from client_lib.mlspace import constants
from client_lib.spec.job import REFUSED_TYPES
from server_stub.runtimes.fields import FIELDS

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "mlspace.md").read_text()


def test_every_name_of_the_room_is_explained() -> None:
    names = [
        name
        for name in client_lib.__all__
        if client_lib._MODULE_OF.get(name, "").startswith("client_lib.mlspace.")
    ]
    assert len(names) == 22
    assert [name for name in names if not re.search(rf"`(client_lib\.)?{name}\b", DOCUMENT)] == []


def test_every_variable_of_the_platform_s_notebooks_is_named() -> None:
    variables = re.findall(r'get\("(\w+)"\)', inspect.getsource(constants))
    assert len(variables) == 7
    assert [name for name in variables if f"`{name}`" not in DOCUMENT] == []


def test_every_refused_type_is_explained() -> None:
    assert [
        kind for kind in REFUSED_TYPES if kind not in DOCUMENT.split("## What is refused")[1]
    ] == []


def test_its_example_is_a_job() -> None:
    code = DOCUMENT.split("```python\n")[1].split("```")[0].split("job.submit()")[0]
    made: dict[str, client_lib.Job] = {}
    exec(code, made)
    assert made["job"].spec.region == "SR006"


def test_an_argument_is_said_to_be_refused_where_a_runtime_refuses_it_and_nowhere_else() -> None:
    table = DOCUMENT.split("<!-- table: platform_parameters -->")[1].split("<!-- end -->")[0]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.strip().splitlines()[2:]
    ]
    said = {
        row[0].strip("`"): tuple(cell.startswith("refused") for cell in row[2:]) for row in rows
    }
    assert FIELDS.keys() <= said.keys()
    assert {name: where for name, where in said.items() if any(where)} == {"gpus": (False, True)}


def test_nothing_is_promised_for_later() -> None:
    assert re.findall(r"not yet|until (?:then|they are|it is)|once that is", DOCUMENT) == []
