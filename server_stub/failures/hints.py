"""Known causes of a failure (`causes.toml`): from the output of a failed rank to the way out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

from client_lib.spec.toml import parse_toml
from client_lib.spec.wire import Code, CodeSnapshot, RankReport
from client_lib.worker.function_runner import PACKAGES

_MISSING_FILE = re.compile(r"No such file or directory: b?'([^'\n]+)'|can't open file '([^'\n]+)'")


@dataclass(frozen=True)
class Facts:
    """Facts about the job beside the report of its rank. The caller looks them up."""

    code: Code
    python: str | None = None
    """The submitter's interpreter."""
    beside_submitter: str | None = None
    """Path of the missing file in the submitter's folder; None if it isn't there or the folder can't be seen."""


def missing_file(rank: RankReport) -> str | None:
    """The path that the rank could not open, as its error names it."""
    match = _MISSING_FILE.search(_output(rank))
    return (match.group(1) or match.group(2)) if match else None


def path_beside_submitter(path: str, code: CodeSnapshot) -> str | None:
    """Path in the submitted folder of a file that is missing in the unpacked snapshot; None if it lies outside."""
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if "work" not in parts:  # snapshots are unpacked in `work/` of the worker's directory
            return None
        inside = parts[len(parts) - parts[::-1].index("work") :]
        return str(PurePosixPath(code.root, *inside))
    return str(PurePosixPath(code.root, code.working_dir, path))


@dataclass(frozen=True)
class Cause:
    """An entry of `causes.toml`, which describes the fields."""

    symptom: str
    shows: re.Pattern[str] | None
    hint: str
    signal: int | None

    def matches(self, rank: RankReport, output: str) -> bool:
        if self.signal and (rank.signal == self.signal or rank.exit_code == 128 + self.signal):
            return True
        return bool(self.shows and self.shows.search(output))


def _read() -> tuple[Cause, ...]:
    text = files(__package__).joinpath("causes.toml").read_text(encoding="utf-8")
    return tuple(
        Cause(
            entry["symptom"],
            re.compile("|".join(entry["shows"])) if "shows" in entry else None,
            entry["hint"],
            entry.get("signal"),
        )
        for entry in parse_toml(text, "causes.toml")["causes"]
    )


CAUSES = _read()
"""The first that matches is the one that a report shows."""


def hint_for(rank: RankReport, facts: Facts) -> str | None:
    """The way out for the first known cause that matches the rank's output; None if none matches."""
    if facts.beside_submitter:
        return (
            f"{facts.beside_submitter} exists, but the snapshot left it out: an ignore file (.gitignore, "
            ".clientlibignore) matches it. Add `!<its path>` to .clientlibignore, or give an absolute path "
            "that the workers see"
        )
    output = _output(rank)
    cause = next((cause for cause in CAUSES if cause.matches(rank, output)), None)
    return _filled(cause, output, facts) if cause else None


def _filled(cause: Cause, output: str, facts: Facts) -> str:
    found = cause.shows.search(output) if cause.shows else None
    groups = found.groupdict() if found else {}
    if "package" in groups:
        groups["package"] = PACKAGES.get(groups["package"], groups["package"])
    return cause.hint.format(python=facts.python or "python", **groups)


def _output(rank: RankReport) -> str:
    return "\n".join([rank.exception or "", rank.traceback or "", *rank.last_lines])
