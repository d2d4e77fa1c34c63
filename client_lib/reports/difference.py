"""Compares what two jobs ran. Pure."""

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from client_lib.reports import curves
from client_lib.spec.metrics import JobMetrics
from client_lib.spec.request import CodeSnapshot, Provenance
from client_lib.spec.wire import JobInfo, JobProvenance
from client_lib.submit.changes import differences
from client_lib.submit.git_reading import files_of

_LINES = 200
"""Most lines of the difference of one file."""
_SHOWN = 8
"""Most changes of one part in a sentence ..."""
_WIDE = 200
"""... and most characters of each."""


class Ran(NamedTuple):
    """All that is known of one job."""

    info: JobInfo
    provenance: JobProvenance
    metrics: JobMetrics | None = None
    texts: Mapping[str, str] = {}
    """The texts of the files of its snapshot; {}: they need not be compared."""


class JobDiff(NamedTuple):
    """The differences between two jobs. Parts without a difference are left out."""

    first: str
    second: str
    parts: dict[str, list[str]]
    """`name: before -> after` by `code`, `fields` (also arguments and variables), `seeds`,
    `packages`, `hardware`, `metrics`; `not compared` has reasons."""
    files: dict[str, str]
    """The files of two snapshots, or else of the uncommitted changes, that differ: unified
    differences of up to 200 lines."""

    def __str__(self) -> str:
        parts = ["\n    ".join([f"{part}:", *lines]) for part, lines in self.parts.items()]
        same = "" if parts or self.files else ": nothing that is recorded differs"
        return "\n".join([f"{self.first} -> {self.second}{same}", *parts, *self.files.values()])

    def sentence(self) -> str:
        """A sentence about what may have made the second job fail; "": nothing has changed."""
        left_out = {"metrics", "not compared"}
        if self.files:
            left_out.add("code")
        shown = []
        for part, found in {"files": list(self.files), **self.parts}.items():
            if not found or part in left_out:
                continue
            few = ", ".join(line[:_WIDE] for line in found[:_SHOWN])
            if len(found) > _SHOWN:
                few += f" and {len(found) - _SHOWN} more"
            shown.append(f"{part} {few}".removeprefix("fields "))
        if not shown:
            return ""
        return f"changed since {self.first}, which succeeded: {'; '.join(shown)}"


def compare(first: Ran, second: Ran) -> JobDiff:
    """A part that is known of one job alone, as an older client or worker
    recorded none, is left out.
    """
    parts = {"code": [], "fields": differences(first.info.spec, second.info.spec)}
    before = _facts(first)
    after = _facts(second)
    for part in before:
        old = before[part]
        new = after[part]
        if old and new:
            names = old.keys() & new.keys() if part == "metrics" else old.keys() | new.keys()
            parts[part] = _changes(old, new, sorted(names))

    was = first.texts
    now = second.texts
    if not all(isinstance(ran.info.code, CodeSnapshot) for ran in (first, second)):
        both = [ran.provenance.submitted or Provenance() for ran in (first, second)]
        was, now = _patches(both)
        parts["not compared"] = [
            f"{ran.info.name}: {each.missing or 'its uncommitted changes are not recorded'}"
            for ran, each in zip((first, second), both, strict=True)
            if each.commit and each.diff is None
        ]
    files = {}
    for name in sorted({*was, *now}):
        text = _unified(name, was.get(name, ""), now.get(name, ""))
        if text:
            files[name] = text
    parts = {part: lines for part, lines in parts.items() if lines}
    return JobDiff(first.info.name, second.info.name, parts, files)


def _changes(old: Mapping[str, str], new: Mapping[str, str], names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        one = old.get(name, "none")
        other = new.get(name, "none")
        if one != other:
            found.append(f"{name}: {one} -> {other}")
    return found


def _patches(both: Sequence[Provenance]) -> list[dict[str, str]]:
    """The uncommitted changes of each, by file; none if they are not known of both."""
    if any(each.diff is None for each in both):
        return [{} for _ in both]
    return [{names[-1]: part for names, part in files_of(each.diff or "")} for each in both]


def _facts(ran: Ran) -> dict[str, dict[str, str]]:
    """Values by part and name."""
    code = ran.info.code
    submitted = ran.provenance.submitted
    machines = ran.provenance.machines
    kind = "snapshot" if isinstance(code, CodeSnapshot) else "script"
    source = {kind: (code.sha256 or "none")[:12]}
    if submitted and submitted.commit:
        source["commit"] = submitted.commit[:12]
        source["branch"] = submitted.branch or ""

    # the values of all machines, each value once, in the order of the machines
    different: dict[str, dict[str, None]] = {}
    for machine in machines:
        for name, value in machine.hardware.items():
            different.setdefault(name, {})[value] = None
    hardware = {name: ", ".join(filter(None, values)) for name, values in different.items()}
    if ran.provenance.images:
        hardware["image"] = ", ".join(ran.provenance.images)

    rows = curves.rows(ran.metrics.model_dump(mode="json")) if ran.metrics else []
    return {
        "code": source,
        "seeds": {"": "", **machines[0].seeds} if machines else {},
        "packages": machines[0].packages if machines else {},
        "hardware": hardware,
        "metrics": {row[0]: f"{row[3]}" + (f", best {row[5]}" if row[5] else "") for row in rows},
    }


def lines(text: str) -> list[str]:
    """The lines of a file as editors and diffs count them: `str.splitlines` ends a line at eight
    other characters, too."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _unified(name: str, before: str, after: str) -> str:
    changes = difflib.unified_diff(
        lines(before), lines(after), f"a/{name}", f"b/{name}", n=2, lineterm=""
    )
    is_patch = not before and after.startswith("diff --git ")
    all_lines = lines(after) if is_patch else list(changes)
    shown = all_lines[:_LINES]
    if len(all_lines) > _LINES:
        shown.append(f"... {len(all_lines) - _LINES} more lines")
    return "\n".join(shown)
