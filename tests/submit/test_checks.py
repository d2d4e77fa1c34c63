"""Checks of a script before it is submitted: what they find, and that they accuse
no script that would run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.submit import checks
from client_lib.submit.checks import BYTES_MAX, check
from client_lib.worker.function_runner import PACKAGES

PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
group = parser.add_argument_group("more")
group.add_argument("-e", "--epochs", "--num_epochs")
args = parser.parse_args()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def found(
    script: Path,
    source: str,
    *arguments: str,
    python: str | None = sys.executable,
    imports: bool = True,
) -> str:
    script.write_text(source)
    return "\n".join(check(script, arguments, python, imports=imports)).replace(f"{script}:", "")


# --- syntax


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("x = 1\ndef f(:\n", "train.py:2: invalid syntax: def f(:"),
        ("return 1\n", "train.py:1: 'return' outside"),
    ],
)
def test_an_error_of_syntax_is_refused_with_its_line(script: Path, source: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        found(script, source)
    assert says in str(refused.value)
    assert "--no-check" in str(refused.value)


def test_by_another_interpreter_it_is_a_warning(script: Path) -> None:
    assert "2: invalid syntax" in found(script, "x = 1\ndef f(:\n", python="/usr/bin/other")
    assert "another interpreter" in found(script, "def f(:\n", python=None)


def test_futures_of_the_check_are_not_those_of_the_script(script: Path) -> None:
    assert found(script, "def g():\n    def f(x: (yield)): ...\n") == ""


def test_a_large_source_is_left_to_its_run(script: Path) -> None:
    script.write_bytes(b"x = '\xff'\n" * (BYTES_MAX // 8 + 1))
    assert check(script, [], sys.executable, imports=True) == []


# --- imports


def test_an_import_that_the_interpreter_lacks_is_named_with_its_line(script: Path) -> None:
    assert found(script, "import os\nimport no_such_module.part, json\n").startswith(
        "2: there is no module 'no_such_m"
    )
    assert found(script, "from no_such_module import x\n").startswith(
        "1: there is no module 'no_such_module'"
    )


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\n",
        "def later():\n    import no_such_module\n",
        "import sys\nsys.path.insert(0, 'elsewhere')\nimport no_such_module\n",
        (
            "import beside, folder\nfrom compiled import x\nfrom . import own\nimport torch, "
            "pydantic.fields\n"
        ),
    ],
)
def test_what_may_be_there_at_the_run_is_not_named(script: Path, source: str) -> None:
    (script.parent / "beside.py").touch()
    (script.parent / "folder").mkdir()
    (script.parent / "compiled.cpython-312-x86_64-linux-gnu.so").touch()
    assert found(script, source) == ""


def test_imports_are_looked_up_only_where_the_job_has_this_interpreter_and_its_packages(
    script: Path,
) -> None:
    assert found(script, "import no_such_module\n", python="/usr/bin/other") == ""
    assert found(script, "import no_such_module\n", imports=False) == ""


# --- arguments


def test_an_option_that_argparse_will_refuse_is_named_with_the_line_of_the_parser(
    script: Path,
) -> None:
    assert (
        found(script, PARSER, "--epohcs", "3")
        == "7: parse_args() will refuse --epohcs: did you mean --epochs?"
    )
    assert found(script, PARSER, "--x=1").startswith(
        "7: parse_args() will refuse --x: it takes --amp, --epochs"
    )


def test_an_option_of_client_lib_is_left_to_the_command_line(script: Path) -> None:
    assert found(script, PARSER, "--n-workers", "2", "--env=A=1") == ""


GOOD = ("--lr", "-1", "--epoch=3", "--no-amp", "-e", "4", "--num_epochs", "--help", "--", "--other")


@pytest.mark.parametrize(
    "source",
    [
        PARSER.replace("parse_args", "parse_known_args"),
        PARSER.replace("ArgumentParser()", "ArgumentParser(parents=[common])"),
        PARSER.replace("argparse.Arg", "configargparse.Arg"),
        PARSER.replace("args =", "add_more(parser)\nargs ="),
        PARSER.replace("args =", "add_more(group)\nargs ="),
        PARSER.replace("args =", "parser.add_argument(*names)\nargs ="),
        PARSER.replace("args =", "parser.add_argument('rest', nargs=argparse.REMAINDER)\nargs ="),
        PARSER.replace("args =", "parser.add_argument('rest', nargs='...')\nargs ="),
        PARSER.replace("parse_args()", "parse_args(['--lr', '1'])"),
        PARSER.replace("args =", "import sys; sys.argv[1:] = []\nargs ="),
        PARSER.replace("parser =", "parser: object ="),
        "import sys\nprint(sys.argv)\n",
    ],
)
def test_a_parser_that_may_take_more_accuses_nobody(script: Path, source: str) -> None:
    assert found(script, source, "--other") == ""


def test_what_argparse_takes_is_not_named(script: Path) -> None:
    assert found(script, PARSER, *GOOD) == ""
    for option in (
        ("--lr", "-1"),
        ("--epoch=3",),
        ("--no-amp",),
        ("--num_epochs", "4"),
        ("--help",),
    ):
        subprocess.run(
            [sys.executable, script, *option],
            check=True,
            stdout=subprocess.DEVNULL,
            env=dict(os.environ),
        )


def test_warnings_of_the_compiler_are_left_to_the_run(
    script: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert not found(script, "print(1 is 1)\n")
    assert not recwarn.list


def test_ones_own_package_is_no_package_to_install(tmp_path: Path) -> None:
    package = tmp_path / "pkg_of_mine"
    package.mkdir()
    (package / "train.py").write_text("from pkg_of_mine.part import value\n")
    warnings = check(package / "train.py", [], sys.executable, imports=True)
    assert warnings == [
        f"{package}/train.py:1: pkg_of_mine is a folder of {tmp_path}, where the script does not "
        f"look: write `python -m pkg_of_mine.train` there, or -e PYTHONPATH={tmp_path}"
    ]


@pytest.mark.parametrize(("module", "package"), [*PACKAGES.items()])
def test_the_package_of_a_module_is_named_once_and_as_the_worker_names_it(
    script: Path, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # some of these modules are installed here
    monkeypatch.setattr(checks, "_is_there", lambda *_: False)
    said = found(script, f"import {module}\nimport {module}.part\n")
    assert said.startswith(f"1: there is no module {module.partition('.')[0]!r}")
    assert said.count("there is no module") == 1
    assert f"requirements=['{package}']" in said
