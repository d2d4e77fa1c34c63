"""The state with which each step of an optimizer began, as `probe` has written it: digests, which
are equal where the values are. Pure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One step of the optimizer. The digests are of the state before the step, except for the last
    three fields."""

    weights: int
    state: int
    """Digest of what the optimizer keeps of each weight."""
    rates: tuple[float, ...]
    """The learning rate of each group of weights."""
    random: Mapping[str, int]
    """Digest of each generator of random numbers, by its library."""
    batch: int | None
    """Digest of the tensors of the first forward since the step before; None: there was none."""
    scale: tuple[float, ...] | None
    """Scale and counter of the gradient scaler; None: there is none."""
    gradients: int
    weights_after: int
    state_after: int
    time: float
    """End of the step, in seconds since 1970."""


class RankRecords(NamedTuple):
    """All records of one rank in one run."""

    steps: Sequence[Step] = ()
    saved: frozenset[str] = frozenset()
    """Paths to which it called torch.save."""
    renamed: frozenset[str] = frozenset()
    """Paths that files or folders were given by a rename."""
    opened: frozenset[str] = frozenset()
    """Paths that it opened for writing."""
    errors: Sequence[str] = ()
    """Errors of the probe itself."""
    pid: int | None = None
    """The number of the process."""
    started: str = ""
    """Start time of the process, which with the number identifies it."""


def parse(lines: Iterable[bytes]) -> RankRecords:
    """The records in the lines of a file; a line that was cut by a kill is left out."""
    steps: list[Step] = []
    paths: dict[str, set[str]] = {"saved": set(), "renamed": set(), "opened": set()}
    errors: list[str] = []
    pid: int | None = None
    started = ""
    for line in lines:
        entry = _entry(line)
        if "weights_after" in entry:
            steps.append(_step(entry))
        elif "error" in entry:
            errors.append(str(entry["error"]))
        elif "pid" in entry:
            pid = int(entry["pid"])
            started = str(entry["started"])
        for kind in paths.keys() & entry.keys():
            paths[kind].add(str(entry[kind]))
    found = {kind: frozenset(each) for kind, each in paths.items()}
    return RankRecords(steps, errors=errors, pid=pid, started=started, **found)


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _step(entry: Mapping[str, Any]) -> Step:
    scale = entry["scale"]
    return Step(
        weights=entry["weights"],
        state=entry["state"],
        rates=tuple(entry["rates"]),
        random=entry["random"],
        batch=entry["batch"],
        scale=None if scale is None else tuple(scale),
        gradients=entry["gradients"],
        weights_after=entry["weights_after"],
        state_after=entry["state_after"],
        time=entry["time"],
    )
