"""The modules of the rank runner, joined into one file."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from client_lib.worker import rank_runner
from client_lib.worker.joining import MODULES, joined_rank_runner
from tests.kit.interpreters import EACH_PYTHON
from tests.worker.rank_runner.joined import RUNNER

FOLDER = Path(rank_runner.__file__).parent
PACKAGE = rank_runner.__name__


def defined(text: str) -> list[str]:
    """The names that the text defines at its top, without those that it imports."""
    names = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [ast.unparse(target) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            names.append(ast.unparse(node.target))
    return names


def late_text(joined: str) -> str:
    """The text of the late modules."""
    (late,) = (
        node.value
        for node in ast.parse(joined).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LATE"
    )
    text: str = ast.literal_eval(late)
    return text


def test_all_modules_are_joined() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert sorted(MODULES) == sorted(files)


def test_no_two_modules_define_the_same_name() -> None:
    joined = joined_rank_runner().decode()
    counts = Counter(defined(joined) + defined(late_text(joined)))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_names_of_modules_above_it(module: str) -> None:
    above = MODULES[: MODULES.index(module)]
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            assert not [name for name in node.names if name.name.startswith("client_lib")]
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("client_lib"):
            package, _, of = str(node.module).rpartition(".")
            assert package == PACKAGE
            assert of in above
            assert node.col_offset == 0, "only imports at the margin are removed"
            assert all(name.asname is None for name in node.names)


def test_the_joined_file_imports_nothing_of_this_package() -> None:
    tree = ast.parse(joined_rank_runner())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node for node in imports if str(node.module).startswith("client_lib")]
    assert [node.module for node in imports if node.col_offset == 0] == ["__future__"]


@EACH_PYTHON
def test_it_compiles(python: str) -> None:
    check = f"compile(open({str(RUNNER)!r}, 'rb').read(), 'rank_runner.py', 'exec')"
    subprocess.run([python, "-c", check], check=True)
