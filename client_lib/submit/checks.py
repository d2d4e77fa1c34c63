"""Checks a command before it is submitted to this machine: its program; or a script: its syntax,
imports and arguments.

Only what every run of the script does is judged: imports at its top level, and options where the
script has one parser of argparse whose calls of `add_argument` name them literally.
"""

import ast
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import option_names, own_module, split_script
from client_lib.spec.job import JobSpec
from client_lib.submit.source import Source
from client_lib.worker.function_runner import package_of

BYTES_MAX = 96 * 1024  # larger scripts are not checked: it would take longer than 50 ms
_ANYWAY = "check=False (--no-check) submits it as it is"
_OURS = {option for field in JobSpec.model_fields for option in option_names(field)}
"""Options of client-lib, which names them itself where they stand behind a script
that does not declare them.
"""
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
# settings of parsers that take other options, too
_FREE = {"fromfile_prefix_chars", "parents", "prefix_chars", None}
_LENIENT = {
    "parse_known_args",
    "parse_intermixed_args",
    "parse_known_intermixed_args",
    "add_subparsers",
    "argv",
}


def check(
    script: Path, arguments: Sequence[str], python: str | None, *, imports: bool
) -> list[str]:
    """Warnings about a script that the interpreter `python` will run on this machine; None: another
    interpreter than the one of this process. `imports`: the job's environment has the packages that
    the interpreter has, and no others. Raises InvalidRequest for an error of syntax if `python` is
    the interpreter of this process."""
    source = script.read_bytes()
    if len(source) > BYTES_MAX:
        return []
    is_ours = python == sys.executable or (
        python is not None and _place(python) == _place(sys.executable)
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run of the script shows them
            tree = ast.parse(source, str(script))
            # finds a `return` outside of functions, and the like
            compile(tree, str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{script}:{error.lineno}: {error.msg}" + (
            f": {error.text.strip()}" if error.text else ""
        )
        if is_ours:
            raise InvalidRequest(where, hint=f"correct it; {_ANYWAY}") from None
        return [
            (
                f"{where} (by Python {sys.version_info[0]}.{sys.version_info[1]}; the job has "
                "another interpreter)"
            )
        ]
    except (ValueError, RecursionError, MemoryError):  # the run of the script reports it
        return []
    missing = _missing(tree, script) if imports and is_ours and b"sys.path" not in source else ()
    return [
        f"{script}:{line}: {finding}" for line, finding in (*missing, *_refused(tree, arguments))
    ]


def _place(python: str) -> tuple[str, str]:
    """Return the place of an interpreter's packages: interpreters at one place have the same
    packages. (Virtual environments share the program.)
    """
    return os.path.dirname(os.path.abspath(python)), os.path.realpath(python)


def check_program(source: Source, path: str | None) -> None:
    """Raises InvalidRequest unless the program of a command is there. `path`: PATH of
    the job, which runs here.
    """
    program = split_script(source.text)[0]
    names = (program, "python3") if program == "python" else (program,)  # the worker takes either
    if not any(shutil.which(name, path=path) for name in names):
        where = "" if os.sep in program else " on PATH"
        raise InvalidRequest(
            f"script={source.text!r}: there is no program {program!r}{where}, and the job runs on "
            "this machine",
            hint="give its path; a shell's own commands run with bash -c",
        )


# --- imports


def _missing(tree: ast.Module, script: Path) -> Iterator[tuple[int, str]]:
    """Modules that this interpreter does not have, each with the first line that imports it."""
    found: set[str] = set()
    for statement in tree.body:
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        for module in names:
            name = module.partition(".")[0]
            if name not in found and not _is_there(name, script.parent):
                found.add(name)
                own = own_module(str(script), name)
                if own is not None:
                    yield (
                        statement.lineno,
                        f"{name} is a folder of {own.folder}, where the script does not look: "
                        f"write `python -m {own.module}` there, or -e PYTHONPATH={own.folder}",
                    )
                    continue
                package = package_of(module)
                for_job = f"requirements=['{package}']"
                way_out = f"install {package} there, or for this job with {for_job}"
                yield (
                    statement.lineno,
                    f"there is no module {name!r} in {sys.executable}: {way_out}",
                )


def _is_there(name: str, folder: Path) -> bool:
    if name in sys.modules or name in sys.stdlib_module_names:
        return True
    # a script finds modules beside it
    if (folder / name).is_dir() or any(folder.glob(f"{name}.*")):
        return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a package's own finder can't answer
        return True


# --- arguments


def _refused(tree: ast.Module, arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Options among the arguments that the script's parser will refuse,
    with the line that does so.
    """
    own = takewhile(lambda word: word != "--", arguments)
    given = [word.partition("=")[0] for word in own if word.startswith("--") and " " not in word]
    given = [option for option in given if option not in _OURS]
    line, options = _declared(list(ast.walk(tree))) if given else (0, set())
    for option in given if line else ():
        # argparse takes the beginning of a name
        if any(name.startswith(option) for name in options):
            continue
        near = get_close_matches(option[2:], [name[2:] for name in options], n=1)
        known = f"did you mean --{near[0]}?" if near else f"it takes {', '.join(sorted(options))}"
        yield line, f"parse_args() will refuse {option}: {known}"


def _declared(nodes: Sequence[ast.AST]) -> tuple[int, set[str]]:
    """The line of `parse_args()`, and the options that it takes; 0: its
    parser may take others, too.
    """
    unknown: tuple[int, set[str]] = (0, set())
    calls = [(_name(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    parsers = [call for name, call in calls if name == "ArgumentParser"]
    parses = [call for name, call in calls if name == "parse_args"]
    if len(parsers) != 1 or not parses or any(call.args or call.keywords for call in parses):
        return unknown
    if (
        any(_name(node) in _LENIENT for node in nodes)
        or {each.arg for each in parsers[0].keywords} & _FREE
    ):
        return unknown
    made_by = parsers[0].func  # another library's parser may have options of its own
    is_imported = any(
        isinstance(node, ast.ImportFrom) and node.module == "argparse" for node in nodes
    )
    is_of_argparse = (
        _name(made_by.value) == "argparse" if isinstance(made_by, ast.Attribute) else is_imported
    )
    if not is_of_argparse or _leaves(calls, nodes):
        return unknown
    options = {"--help"}
    for call in (call for name, call in calls if name == "add_argument"):
        names = [
            word.value
            for word in call.args
            if isinstance(word, ast.Constant) and isinstance(word.value, str)
        ]
        if len(names) != len(call.args) or any(_takes_the_rest(each) for each in call.keywords):
            return unknown
        options |= {name for name in names if name.startswith("--")}
        if any(_name(each.value) == "BooleanOptionalAction" for each in call.keywords):
            options |= {f"--no-{name[2:]}" for name in names if name.startswith("--")}
    return parses[0].lineno, options


def _leaves(calls: Sequence[tuple[str | None, ast.Call]], nodes: Sequence[ast.AST]) -> bool:
    """True: other code gets the parser or a group of it, and may declare options."""
    made = {id(call) for name, call in calls if name in ("ArgumentParser", *_GROUPS)}
    # `parser` of `parser.add_argument`
    used = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    names = set()
    for node in nodes:
        if (
            isinstance(node, ast.Assign)
            and id(node.value) in made
            and isinstance(node.targets[0], ast.Name)
        ):
            names.add(node.targets[0].id)
            used.add(id(node.value))
    loads = (
        node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    return not made <= used or any(node.id in names and id(node) not in used for node in loads)


def _name(node: ast.AST) -> str | None:
    """`a.b.name` and `name` -> name."""
    found = getattr(node, "attr", None) or getattr(node, "id", None)
    return found if isinstance(found, str) else None


def _takes_the_rest(keyword: ast.keyword) -> bool:
    """The argument takes words that look like options, or may do so."""
    if keyword.arg != "nargs":
        return keyword.arg is None
    return not isinstance(keyword.value, ast.Constant) or keyword.value.value == "..."
