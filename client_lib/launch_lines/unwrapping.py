"""The program of a line behind what a shell user writes before it: `VAR=1`, `env`, `nohup`, `time`,
`bash -c`, `uv run`, `poetry run`, `conda run` and their kind. Pure.

Each step removes one of them from the front of the line. A wrapper whose options have no meaning
for a job ends the reading: the line is then run as it is.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any, NamedTuple

from client_lib.launch_lines.lines import Machine

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL_SYNTAX = re.compile(r"[$`|&;<>()\n*?{}#~]")
SCRIPT_MAX = 64 * 1024
"""Characters of a file of commands that are looked through."""
ROW_MAX = 10_000
"""Characters of a row of such a file; longer rows are passed over."""
_WRAPPERS_MAX = 32
"""Wrappers that are removed from one line; behind more of them the line is not read."""
_FOLDERS_ABOVE = 8
"""Folders above the working directory in which the environment of a project is looked for."""


@dataclass(frozen=True)
class Unwrapped:
    """A line without the wrappers before its program."""

    words: Sequence[str]
    """The program with its arguments; of a wrapper that can't be read, the wrapper itself."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the wrappers set."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the job that the wrappers mean, such as `conda_env`."""
    python: str | None = None
    """The interpreter of the environment that a wrapper chooses; None: the shell's."""
    notices: Sequence[str] = ()
    unread: bool = False
    """True: `words` begin with a wrapper that starts a program in a way that can't be read."""

    def within(self, outer: "Unwrapped") -> "Unwrapped":
        """The same line seen through one more wrapper outside; what is inside wins."""
        return Unwrapped(
            self.words,
            {**outer.environment, **self.environment},
            {**outer.fields, **self.fields},
            self.python or outer.python,
            [*outer.notices, *self.notices],
            self.unread,
        )


def unwrap(words: Sequence[str], machine: Machine) -> Unwrapped:
    """Remove all wrappers that can be read from the front of a line."""
    found = Unwrapped(words)
    for _ in range(_WRAPPERS_MAX):
        step = _unwrap_once(found.words, machine) if found.words and not found.unread else None
        if step is None:
            return found
        found = step.within(found)
    return replace(found, unread=True)


def assigned(words: Sequence[str]) -> Unwrapped:
    """Remove `VAR=1` from the front of a line, as often as it stands there."""
    variables = {}
    rest = list(words)
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables[name] = value
    return Unwrapped(rest, variables)


def _unwrap_once(words: Sequence[str], machine: Machine) -> Unwrapped | None:
    """None: the line begins with its program."""
    if _ASSIGNMENT.match(words[0]):
        return assigned(words)
    program = os.path.basename(words[0])
    if program in _PREFIXES:
        return _behind(words, _PREFIXES[program])
    if program in _SHELLS:
        return _in_shell(words)
    if " ".join([program, *words[1:2]]) in _PROJECT_RUNNERS:
        return _in_project(words, machine)
    if program in _CONDAS and words[1:2] == ["run"]:
        return _in_conda(words)
    return None


# --- options of wrappers


class _Options(NamedTuple):
    """Options of a wrapper that have a meaning here or change nothing; any other one can't be
    read."""

    flags: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    attached: str = r"(?!)"
    """Regular expression of options that hold their value and change nothing, such as `-oL`."""


class _Given(NamedTuple):
    """The options of a wrapper, in their order, and the words behind them."""

    options: list[tuple[str, str]]
    rest: Sequence[str]


def _split(words: Sequence[str], known: _Options) -> _Given | None:
    """None: one of the options can't be read."""
    given: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        at += 1
        if option == "--":
            break
        if option in known.valued:
            if not equals:
                value = "".join(words[at : at + 1])
                at += 1
            given.append((option, value))
        elif option in known.flags and not equals:
            given.append((option, ""))
        elif not re.fullmatch(known.attached, words[at - 1]):
            return None
    return _Given(given, words[at:])


# --- programs that run the rest of the line as it stands

_PREFIXES: dict[str, _Options] = {
    "env": _Options(),
    "nohup": _Options(),
    "command": _Options(),
    "exec": _Options(),
    "unbuffer": _Options(),
    "time": _Options(
        frozenset({"-p", "-v", "-a", "--verbose", "--portability"}), frozenset({"-f"})
    ),
    "nice": _Options(valued=frozenset({"-n", "--adjustment"}), attached=r"-n?-?\d+"),
    "ionice": _Options(valued=frozenset({"-c", "-n"}), attached=r"-[cn]\d"),
    "setsid": _Options(frozenset({"-w", "--wait", "-f", "--fork", "-c", "--ctty"})),
    "stdbuf": _Options(valued=frozenset({"-i", "-o", "-e"}), attached=r"-[ioe]\S+|--\w+=\S+"),
    "caffeinate": _Options(frozenset({"-d", "-i", "-m", "-s", "-u", "-dims"})),
}


def _behind(words: Sequence[str], known: _Options) -> Unwrapped:
    given = _split(words[1:], known)
    return Unwrapped(words, unread=True) if given is None else Unwrapped(given.rest)


# --- shells

_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})


def _in_shell(words: Sequence[str]) -> Unwrapped | None:
    """`bash -c 'torchrun ...'`; None: the shell runs a file."""
    text = shell_text(words)
    if text is None:
        return None
    try:
        inner = [] if _SHELL_SYNTAX.search(text) else shlex.split(text)
    except ValueError:
        inner = []
    return Unwrapped(inner) if inner else Unwrapped(words, unread=True)


def shell_text(words: Sequence[str]) -> str | None:
    """The text that a shell gets with `-c`; None: `words` are no such line."""
    if not words or os.path.basename(words[0]) not in _SHELLS:
        return None
    runs_text = False
    rest = list(words[1:])
    while rest and rest[0][:1] in ("-", "+"):
        option = rest.pop(0)
        if option.startswith("--"):
            continue
        runs_text |= "c" in option
        if "o" in option:
            del rest[:1]
    return rest[0] if runs_text and rest else None


def rows_of(script: str) -> Iterator[str]:
    """The rows of a shell's script that hold commands; a row that goes on is one with the next."""
    for row in script[:SCRIPT_MAX].replace("\\\n", " ").splitlines():
        if row.lstrip()[:1] not in ("", "#") and len(row) <= ROW_MAX:
            yield row


_BEFORE_COMMANDS = frozenset(
    {"!", "{", "if", "then", "elif", "else", "while", "until", "do", "eval"}
)
"""Words of a shell after which a command begins."""


def script_of(words: Sequence[str]) -> str | None:
    """The file of commands that a line runs: `bash run.sh`, `./run.sh`; None: it runs none."""
    if not words or os.path.basename(words[0]) not in _SHELLS:
        return words[0] if words and words[0].endswith(".sh") else None
    if shell_text(words) is not None:
        return None
    return next((word for word in words[1:] if not word.startswith(("-", "+"))), None)


def commands_of(text: str) -> list[list[str]]:
    """The words of each simple command in a shell's text; []: it can't be split."""
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word.strip("();<>|&"):
                commands[-1].append(word)
            else:
                commands.append([])
    except ValueError:
        return []
    simple = ([*dropwhile(_BEFORE_COMMANDS.__contains__, words)] for words in commands)
    return [words for words in simple if words]


# --- programs that run the rest of the line in the environment of a project

_MODULE = ("-m", "--module")
_SCRIPT = ("-s", "--script")
_WITH = "--with"
_PROJECT_RUNNERS: dict[str, _Options] = {
    "uv run": _Options(
        frozenset({"--frozen", "--locked", "--no-sync", "--active", "--exact", "--inexact"})
        | {"--offline", "-n", "--no-cache", "-q", "--quiet", "-v", "--verbose", "--no-progress"}
        | {"--dev", "--no-dev", "--all-extras", "--all-groups", "--all-packages"}
        | {*_MODULE, *_SCRIPT},
        frozenset({_WITH, "--extra", "--no-extra", "--group", "--no-group", "--package"}),
    ),
    "poetry run": _Options(frozenset({"-q", "--quiet", "-n", "--no-interaction", "-v"})),
    "pipenv run": _Options(),
    "pdm run": _Options(),
    "rye run": _Options(),
    "hatch run": _Options(),
}


def _in_project(words: Sequence[str], machine: Machine) -> Unwrapped:
    runner = f"{os.path.basename(words[0])} run"
    given = _split(words[2:], _PROJECT_RUNNERS[runner])
    if given is None or not given.rest:
        return Unwrapped(words, unread=True)
    rest = list(given.rest)
    names = {name for name, _ in given.options}
    if names & {*_MODULE}:
        rest = ["python", "-m", *rest]
    elif names & {*_SCRIPT} or (runner == "uv run" and rest[0].endswith(".py")):
        rest = ["python", *rest]
    packages = [each for name, value in given.options if name == _WITH for each in value.split(",")]
    fields = {"requirements": packages} if packages else {}
    python = _project_python(machine)
    notices = []
    if python is None:
        notices.append(
            f"{runner}: there is no .venv here or above, so the python of your shell is used"
        )
    return Unwrapped(rest, fields=fields, python=python, notices=notices)


def _project_python(machine: Machine) -> str | None:
    """The interpreter of the nearest environment in the working directory or above."""
    folder = machine.environment.get("UV_PROJECT_ENVIRONMENT") or ".venv"
    for above in range(_FOLDERS_ABOVE):
        python = os.path.join(*[os.pardir] * above, folder, "bin", "python")
        if machine.is_file(python):
            return python
    return None


# --- conda

_CONDAS = frozenset({"conda", "mamba", "micromamba"})
_CONDA_RUN = _Options(
    frozenset({"--no-capture-output", "--live-stream", "-s", "-v"}),
    frozenset({"-n", "--name", "-p", "--prefix"}),
)


def _in_conda(words: Sequence[str]) -> Unwrapped:
    """`conda run -n NAME ...`: the job's `conda_env`."""
    given = _split(words[2:], _CONDA_RUN)
    if given is None:
        return Unwrapped(words, unread=True)
    named = [value for _, value in given.options if value]
    return Unwrapped(given.rest, fields={"conda_env": named[-1]} if named else {})
