"""The sequence of a drill: two undisturbed runs, then the faults one after another."""

from __future__ import annotations

import random
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from client_lib.drill import disturbances, judgement, restored, runs, values
from client_lib.drill.disturbances import ENDED, TooLate
from client_lib.drill.faults import FAULTS, Course, Fault, Moment, moment
from client_lib.drill.folders import Ground, RunPlace, ground, is_temporary, outside
from client_lib.drill.judgement import DrillVerdict, Episode, Files, Result, Seen, Tensors, Whole
from client_lib.drill.records import RankRecords
from client_lib.drill.report import DrillReport
from client_lib.drill.runs import Run, Script, ending
from client_lib.drill.saves import Saves, cut, is_renamed
from client_lib.errors import Conflict, NotSupported
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.replace import replaced
from client_lib.spec.states import State
from client_lib.transport.api import Api

_UNDISTURBED_LIMIT_S = 24 * 3600.0
"""Seconds that an undisturbed run may take, with its time in the queue."""
_QUEUE_LIMIT_S = 3600.0
"""Seconds that a later run may wait for its start."""
_LIMIT_S = 60.0
"""Seconds that a run may take beside three times the time of an undisturbed one."""
_LOOK_S = 0.05

OnStep = Callable[[str], None]
"""Gets a few words about what the drill does now."""


def rehearse(
    api: Api,
    spec: JobSpec,
    python: str,
    faults: Sequence[Fault] = FAULTS,
    on_step: OnStep = lambda _: None,
) -> DrillReport:
    """Run the script of `spec` undisturbed and with faults, on this machine, and say what each
    fault has changed.

    Each run is a job with a copy of the code and folders of its own. Jobs and folders of runs in
    which no fault was found are removed.

    Raises:
        Conflict: an undisturbed run does not succeed, or writes its checkpoints elsewhere.
        InvalidRequest: as `Job.submit`; or an option of the script names a folder elsewhere.
        NotSupported: the server is on another machine, or the job is elastic.
    """
    _check(api, spec)
    # a profile may name a webhook, which shall not hear of these runs
    quiet = Api(replace(api.config, notify=None))
    variables = {**runs.offline(python), **spec.env_variables}
    script = Script(quiet, replaced(spec, env_variables=variables), python, uuid.uuid4().hex[:8])
    with ground(spec, spec.script) as at:
        return _Rehearsal(script, at, on_step).report(faults)


def _check(api: Api, spec: JobSpec) -> None:
    if sys.platform != "linux":
        raise NotSupported("a drill needs Linux: it finds the processes of a run in /proc")
    if not api.runs_here():
        raise NotSupported(
            f"the server {api.endpoint} does not run jobs on this machine",
            hint="a drill runs on this machine: --endpoint local",
        )
    if spec.type is JobType.PYTORCH_ELASTIC:
        raise NotSupported(
            "torchrun restarts the ranks of an elastic job itself",
            hint="drill the script as a job of a fixed size, without -t pytorch_elastic",
        )


class _Undisturbed(NamedTuple):
    """An undisturbed run, and where it took place."""

    place: RunPlace
    seen: Seen
    course: Course
    newest: Path | None
    """Its last checkpoint."""
    records: dict[int, RankRecords]


class _Rehearsal:
    """The runs of one drill, one after the other."""

    def __init__(self, script: Script, at: Ground, on_step: OnStep) -> None:
        self._script = script
        self._at = at
        self._on_step = on_step
        self._runs: list[Run] = []
        """The runs of the fault that is tried."""
        self._disturbed_at = 0.0

    def report(self, faults: Sequence[Fault]) -> DrillReport:
        self._on_step("first undisturbed run")
        first = self._undisturbed("undisturbed-1")
        elsewhere = self._outside(first)
        self._on_step("second undisturbed run")
        again = self._undisturbed("undisturbed-2")
        tensors, notes = self._compared(first.newest, again.newest)
        whole = Whole(first.seen, again.seen, tensors)
        results = []
        for number, fault in enumerate(faults):
            self._on_step(f"{number + 1} of {len(faults)}: {fault.value}")
            results.append(self._result(fault, whole, first))
        is_alike = restored.is_repeatable(first.seen.steps, again.seen.steps)
        repeatable = is_alike and not values.noisy(first.seen.curves, again.seen.curves)
        errors = {error for each in first.records.values() for error in each.errors}
        notes += [f"the probe in the ranks has failed: {error}" for error in sorted(errors)]
        found = DrillReport(
            self._script.spec.script,
            (first.seen.seconds + again.seen.seconds) / 2,
            repeatable,
            results,
            judgement.shared_saves([each.saved for each in first.records.values()]),
            elsewhere,
            notes,
        )
        for each in (first, again):
            shutil.rmtree(each.place.folder, ignore_errors=True)
        kept = any(result.verdict.is_fault for result in results)
        return found._replace(folder=str(self._at.base) if kept else "")

    def _undisturbed(self, name: str) -> _Undisturbed:
        place = self._at.place(name)
        saves = Saves(str(place.folder))
        run = self._begin(place, "whole", "undisturbed")
        until = time.monotonic() + _UNDISTURBED_LIMIT_S
        with ending(run):
            while not run.is_over():
                if time.monotonic() > until:
                    raise Conflict(
                        f"the undisturbed run {run.name} has not ended after "
                        f"{_UNDISTURBED_LIMIT_S:g} s: it is {run.info.state}",
                        hint="drill a shorter training, such as one with fewer steps",
                    )
                saves.look()
                time.sleep(_LOOK_S)
        info = run.info
        if info.state is not State.SUCCEEDED:
            raise Conflict(
                f"the undisturbed run {run.name} is {info.state}: {run.seen().why}",
                hint="a drill needs a script that ends well; `client-lib explain "
                f"{run.name}` tells more",
            )
        found = saves.found()
        began = info.started_at.timestamp() if info.started_at else 0.0
        seen = run.seen()
        course = Course(
            seen.seconds,
            [at - began for at in saves.times()],
            [step.time - began for step in seen.steps],
        )
        newest = next((place.folder / each.path for each in found if not each.missing), None)
        records = run.records()
        self._forget(keeps=False)
        return _Undisturbed(place, seen, course, newest, records)

    def _outside(self, first: _Undisturbed) -> list[str]:
        """The paths elsewhere to which the script has written. Raises Conflict: its checkpoints are
        among them."""
        saved = [path for each in first.records.values() for path in each.saved]
        if elsewhere := outside(saved, self._at.base):
            raise Conflict(
                f"the script saves to {elsewhere[0]}, outside of the drill's folders, so the drill "
                "has stopped after one undisturbed run",
                hint="save below the working directory, or in CLIENT_LIB_CHECKPOINT_DIR",
            )
        renamed = [path for each in first.records.values() for path in each.renamed]
        opened = [path for each in first.records.values() for path in each.opened]
        kept = [path for path in opened if not is_temporary(path)]
        return outside([*renamed, *kept], self._at.base)

    def _begin(self, place: RunPlace, name: str, what: str) -> Run:
        run = Run(self._script, place, name, f"drill: {what}")
        self._runs.append(run)
        return run

    def _forget(self, *, keeps: bool) -> None:
        """The runs of the episode are over; remove their jobs, unless `keeps`."""
        for run in self._runs:
            if not keeps:
                run.delete()
        self._runs.clear()

    def _result(self, fault: Fault, whole: Whole, first: _Undisturbed) -> Result:
        """Try one fault; once more at its earliest moment if the run had ended before."""
        part = random.Random(f"{fault.name} {len(first.course.saves)}").random()
        result = self._tried(fault, whole, first, part)
        is_late = result.verdict is DrillVerdict.NOT_RUN and list(result.notes) == [ENDED]
        return self._tried(fault, whole, first, 0.0) if is_late else result

    def _tried(self, fault: Fault, whole: Whole, first: _Undisturbed, part: float) -> Result:
        """Try one fault at a moment; `part`: see `faults.moment`."""
        name = fault.name.lower()
        folder = self._at.base / name
        result = Result(fault, DrillVerdict.NOT_RUN)
        disk = disturbances.small_disk(folder, first.place.folder)
        try:
            with disk if fault is Fault.DISK else nullcontext():
                episode = self._episode(fault, first, part)
                result = judgement.judge(episode, whole)
        except TooLate as why:
            result = result._replace(notes=[str(why)])
        finally:
            keeps = result.verdict.is_fault
            self._forget(keeps=keeps)
            if not keeps or fault is Fault.DISK:
                shutil.rmtree(folder, ignore_errors=True)
        return result if keeps else result._replace(jobs=[])

    def _episode(self, fault: Fault, first: _Undisturbed, part: float) -> Episode:
        """The runs of one fault. Raises TooLate."""
        usual_s = first.seen.seconds
        limit_s = 3 * usual_s + _LIMIT_S
        if fault in (Fault.RANK, Fault.FROZEN) and len(first.records) == 1:
            raise TooLate("the job has one rank")
        place = self._at.place(fault.name.lower())
        saves = Saves(str(place.folder))
        run = self._begin(place, "first", fault.value)
        with ending(run):
            self._disturb(fault, run, saves, moment(fault, first.course, part), limit_s)
        if not fault.resumes:
            return self._ended(Episode(fault, None, run.seen()), saves, first)
        if run.info.state is State.SUCCEEDED:
            if fault is Fault.DISK:
                return self._ended(Episode(fault, None, run.seen()), saves, first)
            raise TooLate(ENDED)
        files = self._left(fault, run, saves)
        resumed = self._begin(place, "resumed", f"{fault.value}, resumed")
        with ending(resumed):
            _await_start(resumed)
            resumed.wait(limit_s)
        return self._ended(Episode(fault, run.seen(), resumed.seen(), files), saves, first)

    def _disturb(self, fault: Fault, run: Run, saves: Saves, then: Moment, limit_s: float) -> None:
        """Let the run come to the moment, disturb it, and wait for its end."""
        _await_start(run)
        began = run.info.started_at
        if began is None:
            raise TooLate(f"the run did not start: {run.seen().why}")
        disturbances.reach(run, saves, then, began.timestamp(), limit_s)
        self._disturbed_at = time.time()
        disturbances.disturb(fault, run, saves, limit_s)
        run.wait(limit_s)
        if fault is Fault.DISK:
            disturbances.make_room(run.place.folder)

    def _left(self, fault: Fault, run: Run, saves: Saves) -> Files:
        """The checkpoints after the first run; the newest is damaged here where the fault wants
        it."""
        found = saves.found()
        renamed = {path for each in run.records().values() for path in each.renamed}
        whole = [each for each in found if not each.missing]
        newest = whole[0] if whole else None
        earlier = [each for each in whole if newest and newest.modified - each.modified > 0.05]
        torn = ""
        if fault is Fault.SAVE and found:
            torn = self._torn(saves, renamed)
        elif fault is Fault.DAMAGED and newest is not None:
            torn = newest.path
            cut(f"{saves.folder}/{torn}")
        return Files(
            newest.path if newest else "",
            len(earlier),
            torn,
            any(save.at >= self._disturbed_at for save in saves.seen),
        )

    def _torn(self, saves: Saves, renamed: set[str]) -> str:
        """The checkpoint that the kill has left in part. Where the kill came a moment too late, it
        is cut, unless a rename has shown it whole from its first moment on."""
        last = saves.found()[0]
        path = f"{saves.folder}/{last.path}"
        if last.missing:
            return last.path
        if is_renamed(path, renamed):
            return ""
        cut(path)
        return last.path

    def _ended(self, episode: Episode, saves: Saves, first: _Undisturbed) -> Episode:
        """The episode with the comparison of its last checkpoint."""
        run = episode.resumed
        whole = [each for each in saves.found() if not each.missing]
        if run is None or not run.succeeded or not whole or first.newest is None:
            return episode
        place = self._at.base / episode.fault.name.lower()
        same = place / first.newest.relative_to(first.place.folder)
        newest = Path(saves.folder) / whole[0].path
        tensors, _ = self._compared(first.newest, same if same.exists() else newest)
        return episode._replace(tensors=tensors)

    def _compared(self, one: Path | None, other: Path | None) -> tuple[Tensors, list[str]]:
        """The comparison of two checkpoints, and a note if there is none."""
        if one is None or other is None:
            return Tensors(), ["no checkpoint was found, so only metrics were compared"]
        try:
            return runs.compare_tensors(self._script.python, one, other), []
        except Conflict as why:
            return Tensors(), [str(why)]


def _await_start(run: Run) -> None:
    """Wait for the start, or for the end of a run that can't start. Raises TooLate."""
    until = time.monotonic() + _QUEUE_LIMIT_S
    while run.info.started_at is None and not run.is_over():
        if time.monotonic() > until:
            raise TooLate(f"the run {run.name} has not started after {_QUEUE_LIMIT_S:g} s")
        time.sleep(_LOOK_S)
