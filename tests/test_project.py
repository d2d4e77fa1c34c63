"""Rules of the project as a whole: what is imported where, what is
locked, what the documents say.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_lib

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
NAME_OF_IMPORT = {
    "yaml": "pyyaml",
    "jwt": "pyjwt",
    "pydantic_settings": "pydantic-settings",
    "prometheus_client": "prometheus-client",
}
COMES_WITH = {
    "urllib3": "requests",
    "starlette": "fastapi",
    "uvloop": "uvicorn",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
    "certifi": "requests",
}


def sources(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py"))


def imported_packages(path: Path) -> set[str]:
    """Top-level names of the absolute imports of a file, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0].lower() for text in requirements}


def test_the_public_surface_is_exactly_all() -> None:
    assert [name for name in dir(client_lib) if not name.startswith("_")] == sorted(
        name for name in client_lib.__all__ if not name.startswith("_")
    )
    assert all(getattr(client_lib, name) is not None for name in client_lib.__all__)


def test_the_worker_imports_the_standard_library_and_itself() -> None:
    ours = (
        "client_lib.worker",
        "client_lib.launcher_protocol",
        "client_lib.checkpoints",
        "client_lib.durable",
    )
    of_worker = [
        *sources("client_lib/checkpoints"),
        *sources("client_lib/worker"),
        *sources("client_lib/launcher_protocol"),
        ROOT / "client_lib/durable.py",
        ROOT / "client_lib/drill/probe.py",
        ROOT / "client_lib/drill/tensors.py",
    ]
    by_ranks = {
        "preflight.py": {"torch"},
        "probe.py": {"torch"},
        "tensors.py": {"torch", "safetensors"},
    }
    for path in of_worker:
        outside = imported_packages(path) - set(sys.stdlib_module_names)
        # run by the interpreter of the ranks alone
        of_ranks = by_ranks.get(path.name, set())
        assert outside <= {"client_lib"} | of_ranks, f"{path} imports {outside}"
        assert all(
            module.startswith(ours) or module == "client_lib"
            for module in re.findall(
                r"^\s*(?:from|import) (client_lib[\w.]*)", path.read_text(), re.MULTILINE
            )
        ), path


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        ("client_lib", PROJECT["dependencies"]),
        ("server_stub", PROJECT["dependencies"] + PROJECT["optional-dependencies"]["server"]),
    ],
)
def test_every_imported_library_is_declared(folder: str, declared: list[str]) -> None:
    known = distributions(declared)
    for path in sources(folder):
        for package in (
            imported_packages(path) - set(sys.stdlib_module_names) - {"client_lib", "server_stub"}
        ):
            name = COMES_WITH.get(package, NAME_OF_IMPORT.get(package, package))
            # asked for by name, where they are there
            optional = name in {"torch", "safetensors", "psycopg", "pandas"}
            # their extras
            optional |= (
                package in {"hydra", "omegaconf", "submitit"} and path.parent.name == "plugins"
            )
            assert optional or name in known, (
                f"{path} imports {package}, which pyproject.toml doesn't name"
            )


def test_lock_files_pin_every_dependency_with_hashes_and_name_no_registry() -> None:
    declared = PROJECT["dependencies"] + [
        text for extra in PROJECT["optional-dependencies"].values() for text in extra
    ]
    assert distributions(declared) - {"client-lib"} <= _locked(ROOT / "requirements" / "dev.txt")
    for lock in LOCKS:
        assert "://" not in lock.read_text(), f"{lock} names an address"


def _locked(lock: Path) -> set[str]:
    names = set()
    for entry in re.split(r"\n(?=\S)", re.sub(r"\\\n\s+", " ", lock.read_text())):
        if "==" in entry:
            assert "--hash=sha256:" in entry, f"{lock}: {entry[:80]} has no hash"
            names.add(entry.split("==")[0].split("[")[0])
    return names


def test_the_reference_has_every_variable_that_the_code_reads() -> None:
    used = {
        name
        for folder in ("client_lib", "server_stub", "tests")
        for path in sources(folder)
        if path != Path(__file__)
        for name in re.findall(r"\bCLIENT_LIB_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())
    }
    assert {name for name in used if f"`{name}`" not in REFERENCE} == set()


def test_the_tables_of_the_documents_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from tables import DOCUMENTS, with_tables  # type: ignore[import-not-found]

    for document in DOCUMENTS:
        assert with_tables(document.read_text()) == document.read_text(), (
            "make docs writes them anew"
        )


def test_the_public_surface_is_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from surface import text  # type: ignore[import-not-found]

    assert (ROOT / "docs" / "api.txt").read_text() == text(), "make docs writes it anew"


def test_the_reference_names_every_reason_and_exit_code() -> None:
    from client_lib.cli.program import ExitCode
    from client_lib.spec.states import Reason

    assert [reason for reason in Reason if f"`{reason}`" not in REFERENCE] == []
    assert {code for code in ExitCode if f"| {code} |" not in REFERENCE} == set()


def test_the_page_of_states_has_each_transition_and_no_other() -> None:
    from client_lib.spec.states import TRANSITIONS, Reason, State

    page = (ROOT / "docs" / "job-states.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.count(" | ") == 4]
    shown: dict[State, set[State]] = {state: set() for state in State}
    for before, after, *_ in rows[1:]:
        for name in re.findall(r"[A-Z]{5,}", before):
            target = name if after == "the same" else after
            shown[State(name)].add(State(target))
    assert shown == TRANSITIONS
    assert {str(reason) for reason in Reason} >= set(re.findall(r"\b[A-Z][a-z]+Failed\b", page))


def test_the_readme_shows_a_job_in_ten_lines_and_it_is_the_example() -> None:
    shown = README.split("```python\n", 1)[1].split("```", 1)[0]
    assert shown == (ROOT / "examples" / "submit.py").read_text()
    assert len(shown.splitlines()) <= 10
    assert README[: README.index(shown)].count("\n") + 10 < 25
    assert len(README.splitlines()) <= 150


def test_make_demo_is_the_call_of_the_readme() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert "client-lib submit -f -N 2 -i cpu.1C.2G examples/digits_ddp.py" in README
    assert "client-lib submit -f -N 2 -i $(DEMO_TYPE) examples/digits_ddp.py" in recipe


FRAGMENTS = frozenset(
    [
        "As",
        "Behind",
        "Below",
        "Beside",
        "By",
        "For",
        "From",
        "Here",
        "How",
        "Nobody",
        "Nothing",
        "Of",
        "So",
        "Somebody",
        "That",
        "Then",
        "There",
        "To",
        "What",
        "Whatever",
        "When",
        "Where",
        "Whether",
        "Which",
        "While",
        "Who",
        "Whoever",
        "Whom",
        "Whose",
        "Why",
        "With",
    ]
)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file, those of fields and constants included."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def test_what_is_deprecated_says_how_long_it_is_kept() -> None:
    """See "Deprecation" in docs/compatibility.md."""
    warnings = [
        (path, ast.unparse(node.args[0]))
        for folder in ("client_lib", "server_stub")
        for path in sources(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "DeprecationWarning" in map(ast.unparse, node.args[1:])
    ]
    assert warnings, "there are some"
    for path, text in warnings:
        told = "{STAYS}" in text or re.search(
            r"goes with version \d+\.\d+, not before 20\d\d-", text
        )
        assert told, (
            f"{path}: say '(goes with version 0.5, not before 2027-06-01)', not only {text}"
        )


def test_a_docstring_starts_with_a_verb_or_the_noun_that_it_describes() -> None:
    fragments = [
        f"{path.relative_to(ROOT)}:{line}: {text.split()[0]} ..."
        for folder in ("client_lib", "server_stub")
        for path in sources(folder)
        for line, text in docstrings(path)
        if text.split()[0] in FRAGMENTS
    ]
    assert fragments == []


SAME_IDEA = {"Gang", "Needs", "Record"}  # of the local and of the Kubernetes runtime


@pytest.mark.parametrize("folder", ["client_lib", "server_stub"])
def test_no_two_classes_of_a_package_have_one_name(folder: str) -> None:
    names = Counter(
        node.name
        for path in sources(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in names.items() if times > 1} <= SAME_IDEA


def test_each_patch_of_a_test_has_its_reason_above_it() -> None:
    """A line of comment above it, or above the patches of which it is one."""
    patch = re.compile(r"\.setattr\(")
    bare = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if path.name == "test_project.py" or not patch.search(line):
                continue
            first = number
            while patch.search(lines[first - 1]):
                first -= 1
            if not lines[first - 1].lstrip().startswith("# "):
                bare.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert bare == []
