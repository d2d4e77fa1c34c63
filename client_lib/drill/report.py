"""The verdicts of a drill as a table, as sentences and as data. Pure."""

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple

from client_lib.drill.judgement import DrillVerdict, Finding, Result
from client_lib.drill.values import Difference

COLUMNS = ("FAULT", "VERDICT", "STEPS LOST", "TIME LOST", "FIRST DIFFERENCE", "NOT RESTORED")


class DrillReport(NamedTuple):
    """The findings of a drill."""

    script: str
    undisturbed_s: float
    """Seconds of an undisturbed run."""
    repeatable: bool
    """Two undisturbed runs were equal, step by step."""
    results: Sequence[Result]
    findings: Sequence[Finding] = ()
    """Findings that belong to no fault."""
    outside: Sequence[str] = ()
    """Paths outside of the drill's folders to which the script has written."""
    notes: Sequence[str] = ()
    folder: str = ""
    """The folder with the runs in which a fault was found; "": it is removed."""

    @property
    def resumes(self) -> bool:
        """True if no fault was found."""
        return not self.findings and not any(each.verdict.is_fault for each in self.results)


def rows(report: DrillReport) -> list[Sequence[str]]:
    """A row for each fault, in the order of COLUMNS."""
    return [
        [
            result.fault.value,
            result.verdict.value,
            "" if result.steps_lost is None else str(result.steps_lost),
            "" if result.lost_s is None else f"{result.lost_s:.1f} s",
            _first(result.difference),
            ", ".join(dict.fromkeys(finding.what for finding in result.findings)),
        ]
        for result in report.results
    ]


def _first(found: Difference | None) -> str:
    if found is None:
        return ""
    return f"{found.metric} at step {found.step:g}: {found.value:.6g}, not {found.expected:.6g}"


def outside(report: DrillReport) -> list[str]:
    """The sentence that comes before all others, if the script has written elsewhere."""
    if not report.outside:
        return []
    shown = ", ".join(report.outside[:5])
    more = f" and {len(report.outside) - 5} more" if len(report.outside) > 5 else ""
    return [f"The script has written outside of the drill's folders: {shown}{more}"]


def sentences(report: DrillReport) -> list[str]:
    """Sentences about all that the table leaves out."""
    found = [finding.sentence for finding in report.findings]
    found += [
        f"{result.fault.value}: {finding.sentence}"
        for result in report.results
        for finding in result.findings
    ]
    found += [f"{result.fault.value}: {note}" for result in report.results for note in result.notes]
    found += report.notes
    if not report.repeatable:
        found.append(
            "Two undisturbed runs differ from each other: only larger differences count as a fault "
            "(a fixed seed lets the drill see more)"
        )
    return list(dict.fromkeys(found))


def verdict(report: DrillReport) -> str:
    """The last sentence."""
    tried = [result for result in report.results if result.verdict is not DrillVerdict.NOT_RUN]
    bad = [result for result in tried if result.verdict.is_fault]
    if not tried:
        return f"{report.script}: no fault could be tried"
    if not bad:
        but = ", but see above" if report.findings else ""
        return f"{report.script} resumes after each of {len(tried)} faults{but}"
    return f"{report.script} does not resume as it should after {len(bad)} of {len(tried)} faults"


def as_data(report: DrillReport) -> dict[str, Any]:
    """The report for programs. Fields are only added in later versions."""
    return {
        "script": report.script,
        "resumes": report.resumes,
        "undisturbed_s": round(report.undisturbed_s, 3),
        "repeatable": report.repeatable,
        "findings": [finding._asdict() for finding in report.findings],
        "outside": list(report.outside),
        "notes": list(report.notes),
        "folder": report.folder,
        "faults": [_result_as_data(result) for result in report.results],
    }


def _result_as_data(result: Result) -> dict[str, Any]:
    return {
        "fault": result.fault.name.lower(),
        "title": result.fault.value,
        "verdict": result.verdict.value,
        "steps_lost": result.steps_lost,
        "time_lost_s": None if result.lost_s is None else round(result.lost_s, 3),
        "first_difference": _difference_as_data(result.difference),
        "findings": [finding._asdict() for finding in result.findings],
        "notes": list(result.notes),
        "jobs": list(result.jobs),
    }


def _difference_as_data(found: Difference | None) -> dict[str, Any] | None:
    """The fields; a number that JSON can't hold is a text, such as "nan" and "inf"."""
    if found is None:
        return None
    return {
        name: str(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in found._asdict().items()
    }
