"""The verdict about one fault, from what was seen of its runs. Pure."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from client_lib.drill import restored, values
from client_lib.drill.faults import Fault
from client_lib.drill.records import Step
from client_lib.drill.restored import Restored, StatePart
from client_lib.drill.values import Comparison, Curves, Difference


class DrillVerdict(str, Enum):
    SAME = "as undisturbed"
    NOISE = "differs within its own noise"
    DIFFERS = "differs"
    NOT_RESUMED = "not resumed"
    FAILED = "failed"
    NOT_RUN = "not run"

    @property
    def is_fault(self) -> bool:
        """The script does not resume as if nothing had happened."""
        return self in (DrillVerdict.DIFFERS, DrillVerdict.NOT_RESUMED, DrillVerdict.FAILED)


class Seen(NamedTuple):
    """One run, as it was seen."""

    job: str
    succeeded: bool
    seconds: float
    curves: Curves = MappingProxyType({})
    steps: Sequence[Step] = ()
    """The records of rank 0."""
    why: str = ""
    """The reason, if it has not succeeded."""


class Files(NamedTuple):
    """The checkpoints of a run, as they were seen when it was interrupted."""

    newest: str = ""
    """The newest complete one when the run was interrupted; "": there was none."""
    others: int = 0
    """Number of complete ones beside it."""
    cut: str = ""
    """The one that the drill cut to half of its size; "": none."""
    saved_at_signal: bool = True
    """One was written after the signal."""


class Tensors(NamedTuple):
    """The comparison of the last checkpoint with the undisturbed one."""

    compared: int = 0
    """Number of tensors and numbers that were compared."""
    differ: int = 0
    """Number of the compared ones that differ."""
    largest: Sequence[tuple[str, float]] = ()
    """The largest differences, with the names of the tensors."""
    raw: Sequence[str] = ()
    """Files that could only be compared byte by byte, with the reason."""


class Episode(NamedTuple):
    """The runs of one fault."""

    fault: Fault
    interrupted: Seen | None = None
    resumed: Seen | None = None
    """The run that counts: of a fault that ends no run the disturbed one itself."""
    files: Files = Files()
    tensors: Tensors = Tensors()
    not_run: str = ""
    """The reason why the fault was not tried; "": it was."""


class Whole(NamedTuple):
    """The two undisturbed runs."""

    first: Seen
    again: Seen
    tensors: Tensors = Tensors()
    """The comparison of their last checkpoints."""


class Finding(NamedTuple):
    """Something that the script should do otherwise."""

    what: str
    sentence: str


class Result(NamedTuple):
    """The verdict about one fault."""

    fault: Fault
    verdict: DrillVerdict
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    """Facts that are no faults of the script."""
    steps_lost: int | None = None
    """Steps that were made twice."""
    lost_s: float | None = None
    """Seconds that the runs took longer than an undisturbed one."""
    difference: Difference | None = None
    jobs: Sequence[str] = ()


def judge(episode: Episode, whole: Whole) -> Result:
    """The verdict about a fault."""
    run = episode.resumed
    if run is None or episode.not_run:
        return Result(episode.fault, DrillVerdict.NOT_RUN, notes=[episode.not_run])
    back = _restored(episode, whole)
    compared = values.compare(whole.first.curves, whole.again.curves, run.curves)
    is_anew = _begins_anew(episode, whole, back)
    counted = _counted(episode, back)
    of_saves = _of_saves(episode, counted, is_anew=is_anew)
    findings = [*of_saves, *_of_state(episode, back, compared, is_anew=is_anew)]
    verdict = _verdict(episode, whole, compared, findings, is_anew=is_anew)
    if verdict is DrillVerdict.FAILED:
        findings = [*of_saves, _of_failure(episode)]
    if verdict is DrillVerdict.DIFFERS and not findings:
        findings = [_unexplained(episode, compared)]
    return Result(
        episode.fault,
        verdict,
        findings if verdict.is_fault else (),
        _notes(episode, verdict, is_anew=is_anew),
        counted,
        _time_lost(episode, whole),
        compared.first if verdict.is_fault else None,
        [seen.job for seen in (episode.interrupted, run) if seen],
    )


def shared_saves(saved: Sequence[frozenset[str]]) -> list[Finding]:
    """A finding for each path to which several ranks have saved. `saved`: the paths of each
    rank."""
    times = Counter(path for paths in saved for path in paths)
    return [
        Finding(
            "every rank saves",
            f"{count} ranks save to {path}: each writes over what the others write; let rank 0 "
            "save alone",
        )
        for path, count in sorted(times.items())
        if count > 1
    ]


def _restored(episode: Episode, whole: Whole) -> Restored | None:
    if not episode.fault.resumes or episode.interrupted is None or episode.resumed is None:
        return None
    return restored.compare(
        episode.interrupted.steps, episode.resumed.steps, whole.first.steps, whole.again.steps
    )


def _begins_anew(episode: Episode, whole: Whole, back: Restored | None) -> bool:
    """True if the second run has started from the beginning."""
    if not episode.fault.resumes or episode.resumed is None:
        return False
    if back is not None:
        prints_anew = _prints_anew(episode.resumed, whole)
        return back.at == 0 or (back.at is None and prints_anew is True)
    return _prints_anew(episode.resumed, whole) is True


def _prints_anew(run: Seen, whole: Whole) -> bool | None:
    """True if it prints as many steps as an undisturbed run; None: it prints no steps."""
    keys = whole.first.curves.keys() & run.curves.keys()
    began = values.first_step(run.curves, keys)
    begins = values.first_step(whole.first.curves, keys)
    if began is None or begins is None:
        counts = [
            (len(run.curves[key].values), len(whole.first.curves[key].values)) for key in keys
        ]
        return any(one >= other for one, other in counts) if counts else None
    return began <= begins


def _verdict(
    episode: Episode,
    whole: Whole,
    compared: Comparison,
    findings: Sequence[Finding],
    *,
    is_anew: bool,
) -> DrillVerdict:
    run = episode.resumed
    if run is None or not run.succeeded:
        return DrillVerdict.FAILED
    if is_anew:
        return DrillVerdict.SAME if _had_no_choice(episode) else DrillVerdict.NOT_RESUMED
    if findings:
        return DrillVerdict.DIFFERS
    noise = values.noisy(whole.first.curves, whole.again.curves) or bool(whole.tensors.differ)
    tensors = episode.tensors
    if tensors.differ:
        return DrillVerdict.NOISE if noise and compared.first is None else DrillVerdict.DIFFERS
    if tensors.compared and not noise:
        # the training is the same to the last bit: a metric that is not averages what was printed
        return DrillVerdict.SAME
    if compared.first is not None:
        return DrillVerdict.DIFFERS
    return DrillVerdict.NOISE if noise and not compared.exact else DrillVerdict.SAME


def _had_no_choice(episode: Episode) -> bool:
    """True if the script had one checkpoint alone, and the drill has damaged it."""
    files = episode.files
    return episode.fault is Fault.DAMAGED and bool(files.cut) and not files.others


def _of_saves(episode: Episode, lost: int | None, *, is_anew: bool) -> list[Finding]:
    """The findings about saving and loading."""
    found = []
    files = episode.files
    run = episode.resumed
    ended_badly = run is not None and not run.succeeded
    if episode.fault is Fault.SAVE and files.cut and (is_anew or ended_badly):
        found.append(
            Finding(
                "save is not atomic",
                f"{files.cut} is written in place, so a kill in the middle of the save leaves a "
                "part of it, and the checkpoint before it is gone; write to another name, then "
                "os.replace",
            )
        )
    elif is_anew and not files.newest and not files.cut:
        found.append(
            Finding("nothing is saved", "there was no checkpoint when the run was interrupted")
        )
    elif is_anew and not _had_no_choice(episode):
        repeated = f", and {lost} steps were made again" if lost else ""
        found.append(
            Finding(
                "nothing is resumed",
                f"the second run has started from the beginning{repeated}, although "
                f"{files.newest or 'a checkpoint'} was there",
            )
        )
    return found


_SENTENCES = {
    StatePart.WEIGHTS: "the first step of the resumed run begins with weights that no step had "
    "before",
    StatePart.OPTIMIZER: "the optimizer's moments or counters are not the saved ones: load its "
    "state_dict, too",
    StatePart.RATES: "the learning rate is another one than at this step of the undisturbed run: "
    "save and load the scheduler's state_dict",
    StatePart.SCALER: "the gradient scaler begins anew: save and load its state_dict",
    StatePart.ORDER: "the first batch is another one than at this step of the undisturbed run: the "
    "sampler or its position in the epoch is not restored",
    StatePart.RANDOM: "weights and batch are the same, the gradients are not: the state of the "
    "random numbers (dropout) is not restored",
    StatePart.COUNTER: "the resumed run makes more steps than were left: it does not know how many "
    "were made",
}


def _of_state(
    episode: Episode, back: Restored | None, compared: Comparison, *, is_anew: bool
) -> list[Finding]:
    """The parts of the state that were not restored."""
    if is_anew or back is None or episode.resumed is None or not episode.resumed.succeeded:
        return []
    lost = back.lost
    # rounded weights, as in a checkpoint in half precision, go on where they were
    if lost == (StatePart.WEIGHTS,) and compared.compared and compared.first is None:
        return []
    return [Finding(part.value, _SENTENCES[part]) for part in lost]


def _of_failure(episode: Episode) -> Finding:
    run = episode.resumed
    which = "the resumed run" if episode.fault.resumes else "the run"
    why = run.why if run else ""
    return Finding("did not end well", f"{which} failed: {why}" if why else f"{which} failed")


def _unexplained(episode: Episode, compared: Comparison) -> Finding:
    tensors = episode.tensors
    if tensors.differ:
        name, by = tensors.largest[0]
        return Finding(
            "final state",
            f"{tensors.differ} of {tensors.compared} tensors of the last checkpoint differ; "
            f"{name} by {by:.3g}",
        )
    metric = compared.first.metric if compared.first else "a metric"
    return Finding("metrics", f"{metric} differs from the undisturbed run")


def _counted(episode: Episode, back: Restored | None) -> int | None:
    """Steps that were made twice."""
    if not episode.fault.resumes:
        return 0
    if back is not None and back.at is not None:
        return max(0, back.made - back.at)
    if episode.interrupted is None or episode.resumed is None:
        return None
    last = values.last_step(episode.interrupted.curves)
    began = values.first_step(episode.resumed.curves)
    return None if last is None or began is None else max(0, int(last - began) + 1)


def _time_lost(episode: Episode, whole: Whole) -> float | None:
    if episode.resumed is None:
        return None
    before = episode.interrupted.seconds if episode.interrupted else 0.0
    usual = (whole.first.seconds + whole.again.seconds) / 2
    return max(0.0, before + episode.resumed.seconds - usual)


def _notes(episode: Episode, verdict: DrillVerdict, *, is_anew: bool) -> list[str]:
    notes = []
    files = episode.files
    if episode.fault is Fault.TERM and not files.saved_at_signal:
        notes.append("nothing was saved at SIGTERM: a handler would save the steps that were lost")
    if is_anew and verdict is DrillVerdict.SAME:
        notes.append(
            f"{files.cut} is the only checkpoint: without it the training starts from the "
            "beginning; a second one would help"
        )
    notes += [f"{file} was compared byte by byte" for file in episode.tensors.raw]
    return notes
