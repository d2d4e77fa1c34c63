"""Compares what two jobs ran. Pure."""

import difflib
from collections.abc import Mapping
from typing import NamedTuple

from client_lib.reports import curves
from client_lib.spec.metrics import JobMetrics
from client_lib.spec.request import CodeSnapshot, Provenance
from client_lib.spec.wire import JobInfo, JobProvenance
from client_lib.submit.changes import differences
from client_lib.submit.git_reading import files_of

_LINES = 200  # of the difference of one file
# changes of one part in a sentence, and characters of each
_SHOWN = 8
_WIDE = 200


class Ran(NamedTuple):
    """All that is known of one job. `texts`: of the files of its snapshot; {}:
    they need not be compared.
    """

    info: JobInfo
    provenance: JobProvenance
    metrics: JobMetrics | None = None
    texts: Mapping[str, str] = {}


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
        left_out = {"metrics", "not compared"} | ({"code"} if self.files else set())
        shown = []
        for part, found in {"files": list(self.files), **self.parts}.items():
            if found and part not in left_out:
                more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
                few = ", ".join(line[:_WIDE] for line in found[:_SHOWN]) + more
                shown.append(f"{part} {few}".removeprefix("fields "))
        return f"changed since {self.first}, which succeeded: {'; '.join(shown)}" if shown else ""


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
        names = (
            sorted(old.keys() & new.keys() if part == "metrics" else old.keys() | new.keys())
            if old and new
            else []
        )
        pairs = [(name, old.get(name, "none"), new.get(name, "none")) for name in names]
        parts[part] = [f"{name}: {one} -> {other}" for name, one, other in pairs if one != other]
    was = first.texts
    now = second.texts
    if not all(isinstance(ran.info.code, CodeSnapshot) for ran in (first, second)):
        was, now, parts["not compared"] = _patches(first, second)
    files = {
        name: _unified(name, was.get(name, ""), now.get(name, "")) for name in sorted({*was, *now})
    }
    parts = {part: lines for part, lines in parts.items() if lines}
    return JobDiff(
        first.info.name,
        second.info.name,
        parts,
        {name: text for name, text in files.items() if text},
    )


def _patches(*both: Ran) -> tuple[Mapping[str, str], Mapping[str, str], list[str]]:
    """The uncommitted changes of the files of each, and the reasons why they are not known."""
    submitted = [ran.provenance.submitted or Provenance() for ran in both]
    unknown = [each.diff is None for each in submitted]
    old, new = (
        {names[-1]: part for names, part in files_of("" if any(unknown) else each.diff or "")}
        for each in submitted
    )
    why = [
        f"{ran.info.name}: {each.missing or 'its uncommitted changes are not recorded'}"
        for ran, each in zip(both, submitted, strict=True)
        if each.commit and each.diff is None
    ]
    return old, new, why


def _facts(ran: Ran) -> dict[str, dict[str, str]]:
    """Values by part and name."""
    code = ran.info.code
    submitted = ran.provenance.submitted
    machines = ran.provenance.machines
    source = {
        "snapshot" if isinstance(code, CodeSnapshot) else "script": (code.sha256 or "none")[:12]
    }
    if submitted and submitted.commit:
        source |= {"commit": submitted.commit[:12], "branch": submitted.branch or ""}
    hardware: dict[str, str] = {}
    for name, value in (item for machine in machines for item in machine.hardware.items()):
        hardware[name] = ", ".join(
            dict.fromkeys([*filter(None, hardware.get(name, "").split(", ")), value])
        )
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


def _unified(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", n=2, lineterm=""
    )
    # a patch as it is
    shown = after.splitlines() if not before and after.startswith("diff --git ") else list(lines)
    return "\n".join(
        [*shown[:_LINES], *([f"... {len(shown) - _LINES} more lines"] if shown[_LINES:] else [])]
    )
