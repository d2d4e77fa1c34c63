"""The meaning of a launcher's command line for a job, and the parts that the readers of all
launchers share. Pure."""

import difflib
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client_lib.errors import InvalidRequest


@dataclass(frozen=True)
class Machine:
    """The facts about machines that the readers of lines need."""

    cores: int | None = None
    """Cores of one worker, for `--nproc-per-node=cpu`; None: not known."""
    accelerate_config: Callable[[str | None, Mapping[str, str]], Mapping[str, Any]] = lambda *_: {}
    """(path given on the line, or None for accelerate's default one; the environment) -> its
    values; {}: there is no default one.
    """
    is_file: Callable[[str], bool] = lambda _: False
    text: Callable[[str], str | None] = lambda _: None
    """Path -> the text of the file; None: there is no such file."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the shell, with those that the line sets: options of torchrun (PET_NNODES),
    HF_HOME."""


@dataclass(frozen=True)
class LaunchLine:
    """A line, read. `fields`, `defaults` and `given_by` are keyed by fields of the job spec."""

    launcher: str
    fields: Mapping[str, Any]
    """Fields that the line sets; another value in an option of the job contradicts the line."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The launcher's defaults for fields that the line leaves out; an option
    of the job overrides them.
    """
    given_by: Mapping[str, str] = field(default_factory=dict)
    """Field -> the words of the line that set it."""
    notices: Sequence[str] = ()
    """A sentence for each thing that is read otherwise than the launcher would."""
    python: str | None = None
    """The interpreter that the line names; None: the shell's."""


def what_runs(
    launcher: str, given: Mapping[str, str], rest: Sequence[str], python: str | None
) -> dict[str, Any]:
    """`script` and `args` from the options of a launcher and the words after them. `python`: the
    interpreter that the line names. Raises InvalidRequest: there are no such words, or both a
    module and no Python are given."""
    module = "module" in given
    no_python = "no-python" in given
    python = python or "python"
    if module and no_python:
        raise InvalidRequest(
            f"{launcher}: --module and --no-python exclude each other", hint="keep one of them"
        )
    if not rest:
        what = "module" if module else "script"
        raise InvalidRequest(
            f"the {launcher} line names no {what}", hint=f"{launcher} [OPTIONS] SCRIPT [ARGS]"
        )
    if module:
        script = shlex.join([python, "-m", rest[0]])
    elif no_python:
        script = shlex.quote(rest[0])
    else:  # a file of any name, as the launchers take it
        script = rest[0] if rest[0].endswith(".py") else shlex.join([python, rest[0]])
    return {"script": script, "args": list(rest[1:])}


def whole_number(option: str, value: str, least: int) -> int:
    """Raises InvalidRequest for any other text."""
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise InvalidRequest(f"{option} {value!r} is not a whole number of at least {least}")
    return number


# why settings of a launcher have no effect, or are refused
RENDEZVOUS = "the workers of a job find each other by themselves"
ONE_SUBMIT = "one submit starts all workers"
LOGS = "the output of every rank is kept with the job (`client-lib logs`)"
PROGRAM = "it is about the launcher's own process, which is not started"
TPU = "only TPUs read it"


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Setting -> reason, from reason -> settings that share it, separated by spaces."""
    return {name: reason for reason, several in names.items() for name in several.split()}


def dropped(given: Iterable[str], reasons: Mapping[str, str], form: str = "--{}") -> list[str]:
    """One sentence for all settings that have no effect for one reason. `form`: `{}` stands for the
    name of a setting.
    """
    of_reason: dict[str, list[str]] = {}
    for name in given:
        if name in reasons:
            of_reason.setdefault(reasons[name], []).append(name)
    ours, _, rest = form.partition("{}")
    return [
        (
            f"{', '.join(ours + name for name in names)}{rest} "
            f"{'has' if len(names) == 1 else 'have'} no effect here: {why}"
        )
        for why, names in of_reason.items()
    ]


# --- splitting, by hand: argparse calls `--nproc` ambiguous between the two spellings of one option


@dataclass(frozen=True)
class OptionTable:
    """The options that a launcher knows, without their dashes, written with
    `-` (`_` means the same).
    """

    launcher: str
    flags: frozenset[str]
    valued: frozenset[str]
    families: tuple[str, ...] = ()  # options that begin so take a value, too
    # one letter -> the option that it stands for
    short: Mapping[str, str] = field(default_factory=dict)
    misspelt: Mapping[str, str] = field(default_factory=dict)
    abbreviations: bool = True

    def find(self, written: str) -> str:
        """The option that is written so, with its dashes. Raises InvalidRequest:
        none or several are meant.
        """
        if not written.startswith("--"):
            if written[1:] in self.short:
                return self.short[written[1:]]
            raise InvalidRequest(f"{self.launcher} has no option {written}")
        name = written[2:].replace("_", "-")
        name = self.misspelt.get(name, name)
        known = self.flags | self.valued
        if name in known or name.startswith(self.families or ("\0",)):
            return name
        near = sorted(option for option in known if self.abbreviations and option.startswith(name))
        if len(near) == 1:
            return near[0]
        if near:
            raise InvalidRequest(
                f"{self.launcher}: {written} may be --{' or --'.join(near)}",
                hint="write more of it",
            )
        like = difflib.get_close_matches(name, known, n=1)
        raise InvalidRequest(
            f"{self.launcher} has no option {written}",
            hint=f"did you mean --{like[0]}?"
            if like
            else "options of client-lib stand before the launcher's name",
        )


@dataclass(frozen=True)
class SplitLine:
    """The words of a launcher's line."""

    given: dict[str, str]
    """Option -> its value, '' of a flag; of a repeated option the last one."""
    misspelt: dict[str, str]
    """A wrong name on the line -> the option that it means."""
    rest: list[str]
    """The words of what the launcher starts."""


def split(words: Sequence[str], table: OptionTable) -> SplitLine:
    """Split a launcher's line as argparse would. Raises InvalidRequest: an unknown option, a value
    that is missing or that a flag does not take."""
    given: dict[str, str] = {}
    misspelt: dict[str, str] = {}
    rest = deque(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.popleft()
        if word == "--":
            break
        if word.startswith("--"):
            written, equals, text = word.partition("=")
            value = text if equals else None
        else:  # `-t3` or `-t=3`
            written = word[:2]
            value = word[2:].removeprefix("=") or None
        name = table.find(written)
        if written.lstrip("-").replace("_", "-") in table.misspelt:
            misspelt[written] = name
        if name in table.flags:
            if value is not None:
                raise InvalidRequest(
                    f"{table.launcher}: {written} takes no value, and {value!r} is given"
                )
            value = ""
        elif value is None:
            if not rest or (rest[0].startswith("-") and not rest[0][1:].isdigit()):
                raise InvalidRequest(f"{table.launcher}: {written} needs a value")
            value = rest.popleft()
        given[name] = value
    return SplitLine(given, misspelt, list(rest))
