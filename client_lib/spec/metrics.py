"""Metrics of a job: the answer of `GET /jobs/{name}/metrics`. Pure."""

from typing import Any, Literal

from client_lib.spec.validation import Lenient, WithNan
from client_lib.spec.wire import JobProgress
from client_lib.spec.wording import duration

POINTS = 1000
"""Points of each curve in an answer, unless a request asks for another number."""
POINTS_MAX = 10_000_000
"""Largest number of points that a request may ask for."""


class Curve(WithNan):
    """The values of one metric over the steps; the attempts of a job one after the other."""

    name: str
    rank: int | None = None
    """None: the lines belong to no rank, as the lines of train.log. A worker's number, if the
    workers were asked for.
    """
    axis: Literal["step", "epoch", "count"] | str = "step"
    """Meaning of `steps`: the steps of the script, or its epochs; `count`: the values are numbered
    from 1."""
    steps: list[float]
    times: list[float]
    """Seconds since 1970, in which the values were printed."""
    values: list[float]
    points: int
    """Number of values that are kept. If the answer has fewer, the smallest and
    largest of each part are in it.
    """
    thinned: bool = False
    """The script has more values than are kept."""


class JobMetrics(WithNan):
    """The curves of a job by name: `metrics["loss"].values`."""

    job: str
    attempt: int
    progress: JobProgress | None = None
    """None: the job does not run, or prints no progress."""
    curves: list[Curve]
    """Ordered by name and rank."""
    complete: bool = True
    """False: the log is long, and a part of it was not read yet; ask again."""
    dropped: int = 0
    """Values of `client_lib.log` that are missing, because of too many calls or names."""

    def __getitem__(self, name: str) -> Curve:
        """The first curve of this name. Raises KeyError with the names that there are."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        raise KeyError(f"{name!r}; there are: {', '.join(self.keys()) or 'none'}")

    def keys(self) -> list[str]:
        """The names of the curves."""
        return list(dict.fromkeys(curve.name for curve in self.curves))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with one row per value: name, rank, step, time
        (UTC), value. Needs pandas.
        """
        import pandas as pd  # type: ignore[import-untyped]  # an optional library

        rows: list[tuple[Any, ...]] = [
            (curve.name, curve.rank, *point)
            for curve in self.curves
            for point in zip(curve.steps, curve.times, curve.values, strict=True)
        ]
        frame = pd.DataFrame(rows, columns=["name", "rank", "step", "time", "value"])
        frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
        return frame


class JobGoodput(Lenient):
    """Seconds of a job from its submit to its end, or until now, by what they were used for: the
    answer of `GET /jobs/{name}/goodput`. `str()` has the parts in percent."""

    job: str
    attempt: int
    wall_s: float
    """The sum of all parts."""
    queued_s: float = 0.0
    """The job waited for its turn, or for free resources."""
    starting_s: float = 0.0
    """Time from the end of the wait to the first step, and pauses before new attempts."""
    steps_s: float = 0.0
    lag_s: float = 0.0
    """Time within steps in which all ranks waited for the last one."""
    checkpoints_s: float = 0.0
    """Pauses between steps in which the directory for checkpoints was written."""
    repeated_s: float = 0.0
    """Steps that an earlier attempt had made too."""
    script_s: float = 0.0
    """Attempts that show no steps, from the start of the script to its end."""
    ending_s: float = 0.0
    """Time from the last step of an attempt to the end of its processes."""
    unknown_s: float = 0.0
    """Other pauses."""

    def parts(self) -> dict[str, float]:
        """The share of each part: together 1."""
        return {name: getattr(self, f"{name}_s") / (self.wall_s or 1.0) for name in PARTS}

    def __str__(self) -> str:
        shares = ", ".join(
            f"{name} {share:.0%}" for name, share in self.parts().items() if share >= 0.005
        )
        return f"{duration(self.wall_s)}: {shares}"


PARTS = (
    "queued",
    "starting",
    "steps",
    "lag",
    "checkpoints",
    "repeated",
    "script",
    "ending",
    "unknown",
)
