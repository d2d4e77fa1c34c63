"""One running attempt: all of its launchers, started all or none, followed to the end of the last.
`runtimes.verdict` decides."""

import asyncio
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict

from typing_extensions import Unpack  # of the standard library from Python 3.11 on

from client_lib import durable
from client_lib.durable import (
    copy_folder,
    make_private_folders,
    read_json,
    sync,
    write_file,
    write_json,
)
from client_lib.errors import ServerError, Unavailable
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import Directory, give_up_reserve, renew, take_reserve
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.reasons import START_FAILED, reason_of
from client_lib.spec.replace import replaced
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure, WorkerInfo
from server_stub.files import outputs
from server_stub.files.job_dirs import attempt_dir, inputs_dir, worker_dir
from server_stub.runtimes import Attempt, Observation, Source, inputs, verdict
from server_stub.runtimes.local import accounts, plan
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.launcher import Launcher
from server_stub.runtimes.local.scheduling import Grant
from server_stub.runtimes.local.warm import WarmPool
from server_stub.runtimes.verdict import Stage, Step, Verdict, WorkerStatus
from server_stub.worker_gateway.sessions import worker_of
from server_stub.worker_gateway.worker import Quiet, StackDump

SLOW_START_S = 0.5  # an attempt that takes longer to start reports that it is starting
# a launcher without ranks that has not stopped by then is killed: it may be unpacking an archive
UNPACKING_S = 0.5
TOO_LATE_S = 15.0  # time that a returning worker has to end by itself after the others have ended
ASK_AGAIN_S = 1.0  # pause before the database, which did not answer, is asked again
NO_ANSWER_S = 10.0  # after the grace period, the launcher itself is killed
Phase = Literal["waiting", "running", "ended"]
RECORD = "attempt.json"  # in the directory of an attempt


@dataclass(frozen=True)
class Record:
    """`attempt.json` in the directory of an attempt, written before its first launcher starts: with
    it, a restarted server looks for the workers; without it, the attempt waits in the queue. It
    holds the resources of the attempt, so that they are not handed out twice."""

    boot_id: str
    workers: int
    grant: Grant
    master_port: int
    memory_gib: float

    @property
    def gpus(self) -> frozenset[int]:
        return frozenset(index for gpus in self.grant for index in gpus)


class _Told(TypedDict, total=False):
    """Further fields of an Observation."""

    workers: tuple[WorkerInfo, ...]
    notes: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime
    first_failing: Failure | None
    stacks: tuple[str, ...]
    quiet: Quiet


class Gang:
    """The workers of one attempt. `report` gets its observations; the last one is its end."""

    def __init__(
        self,
        attempt: Attempt,
        started: Record,
        host: str,
        python: str,
        report: Callable[[Observation], None],
        pool: WarmPool | None = None,
        never_warm: str | None = None,
    ):
        """`pool`: the warm pool that forks its launchers, if it can. `never_warm`:
        the reason why no pool can.
        """
        self.attempt = attempt
        self.record = started
        self._host = host
        self._python = python
        self._report = report
        self._pool = pool
        self._never_warm = never_warm
        self._pool_failed: str | None = None
        self._directory = attempt_dir(attempt.job_dir, attempt.number)
        self._returned_path = str(self._directory / "returned.json")
        self._launchers = [
            Launcher(
                worker_dir(attempt.job_dir, attempt.number, number), number, host, self._changed
            )
            for number in range(started.workers)
        ]
        self._elastic = verdict.elastic_bounds(attempt.spec)
        self._returned: dict[int, int] = {}
        """Lost worker -> number of its restarts."""
        self._restarting = asyncio.Lock()
        """Held while restarts are counted: workers may be lost at once."""
        self._began = False
        """Ranks of this attempt have run: no loss is survived before."""
        self._may_go = False
        self._stopped = False
        """The service has stopped it before any worker failed."""
        self._lost_first = False
        """The first worker that failed lost its launcher: that caused
        the failures of the others.
        """
        self._stops: set[tuple[float, bool]] = set()
        """Grace periods of the stops so far, with whether they were to interrupt."""
        self._timers: list[asyncio.TimerHandle] = []
        self._last: Observation | None = None

    # --- from start to end

    async def start(self, plans: Sequence[WorkerPlan], account: Account | None = None) -> None:
        """Write all files, start all launchers, follow them to the end. `account`: runs
        them; None: the server's.
        """
        after: Sequence[Sequence[Source]] | None = None
        try:
            while self.attempt.after and after is None and not self._stopped:
                try:
                    after = await self.attempt.after()
                except Unavailable:
                    await asyncio.sleep(ASK_AGAIN_S)
            with durable.naming(str(self._directory)):
                await asyncio.to_thread(self._prepare, plans, account, after or ())
        except OSError as error:
            for launcher in self._launchers:
                give_up_reserve(launcher.files.reserve)
            self._end(
                Verdict(
                    Reason(reason_of(error, START_FAILED)),
                    f"the attempt could not be prepared: {error}",
                )
            )
            return
        # up to 16 MB, which would stay as long as the attempt runs; its plan is on disk
        del plans
        submitter = replaced(self.attempt.submitter, environment={})
        self.attempt = replace(self.attempt, submitter=submitter)
        await self._run(self._launchers)

    async def adopt(self, boot_id: str) -> None:
        """Find the launchers of an earlier server process and follow them to the end."""
        if self.record.boot_id != boot_id:
            for launcher in self._launchers:
                launcher.lose_with_machine()
            self._end(verdict.verdict(self._workers, self._stopped, self._lost_first))
            return
        self._began = self._launchers[0].has_begun()
        self._returned = {
            int(worker): times for worker, times in (read_json(self._returned_path) or {}).items()
        }
        await self._run([launcher for launcher in self._launchers if not launcher.was_launched()])

    async def _run(self, unlaunched: Sequence[Launcher]) -> None:
        self._later(SLOW_START_S, self._report_starting)
        try:
            await asyncio.to_thread(self._spawn, await self._fork(unlaunched))
            followed = asyncio.gather(
                *(self._follow(number) for number in range(len(self._launchers)))
            )
            await asyncio.to_thread(_make_durable, self._directory)
            self._may_go = True
            self._changed()
            await followed
        finally:
            for timer in self._timers:
                timer.cancel()
        reports = [worker.report for worker in self._workers]
        conflicts = await asyncio.to_thread(outputs.conflict_notes, self.attempt.job_dir, reports)
        self._end(verdict.verdict(self._counted, self._stopped, self._lost_first), conflicts)
        await asyncio.gather(*(launcher.reap() for launcher in self._launchers))

    async def _follow(self, number: int) -> None:
        """Follow a worker to its end; restart a lost one if the others can continue without it."""
        await self._launchers[number].follow()
        while self._may_return(number):
            await self._launchers[number].reap()
            folder = worker_dir(self.attempt.job_dir, self.attempt.number, number)
            async with self._restarting:
                restarts = self._returned | {number: self._returned.get(number, 0) + 1}
                try:
                    await asyncio.to_thread(renew, Directory(str(folder)))
                    # before the restart: a server that is killed in between must not count too few
                    known = {str(worker): times for worker, times in restarts.items()}
                    await asyncio.to_thread(write_json, self._returned_path, known, durable=True)
                except OSError:  # a broken disk: it stays lost
                    return
                if not self._may_return(number):  # any more
                    return
                self._returned = restarts
            self._launchers[number] = Launcher(folder, number, self._host, self._changed)
            self._changed()
            await asyncio.to_thread(self._launchers[number].spawn, self._python)
            await self._launchers[number].follow()

    def _may_return(self, number: int) -> bool:
        if self._elastic is None or self._stops or self._launchers[0].worker.stage.over:
            return False
        return number in self._survived and self._returned.get(number, 0) < self._elastic.returns

    def _prepare(
        self,
        plans: Sequence[WorkerPlan],
        account: Account | None,
        after: Sequence[Sequence[Source]],
    ) -> None:
        if account is not None:
            accounts.prepare(self.attempt, plans[0], account)
        else:
            make_private_folders(str(self._directory))
            checkpoints = plan.checkpoint_dir(self.attempt)
            if source := accounts.checkpoints_to_copy(self.attempt, checkpoints):
                copy_folder(str(source), str(checkpoints), plans[0].keep_free_bytes)
            checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
        for earlier in range(1, self.attempt.number):
            shutil.rmtree(inputs_dir(self.attempt.job_dir, earlier), ignore_errors=True)
        if after:
            found = inputs_dir(self.attempt.job_dir, self.attempt.number)
            inputs.make_folder(after, found, plans[0].keep_free_bytes)
            if account is not None:
                accounts.give(found, account)
        for each in plans:
            folder = worker_dir(self.attempt.job_dir, each.attempt, each.worker)
            make_private_folders(str(folder))
            files = Directory(str(folder))
            write_file(files.plan, each.to_json().encode())
            take_reserve(files.reserve, each.processes_per_worker)
            if account is not None:
                accounts.hand_over(folder, account)
        write_json(str(self._directory / RECORD), asdict(self.record))

    async def _fork(self, launchers: Sequence[Launcher]) -> list[Launcher]:
        """Fork launchers from the warm pool. Returns the launchers that must be started
        otherwise."""
        if self._pool is None or self._stopped:
            return list(launchers)
        pool = self._pool
        failures = await asyncio.gather(
            *(pool.launch(launcher.files.path) for launcher in launchers)
        )
        self._pool_failed = next(filter(None, failures), None)
        return [launcher for launcher, failed in zip(launchers, failures, strict=True) if failed]

    @property
    def fresh_because(self) -> str | None:
        """The reason why its ranks were not forked from its warm pool; None: they were."""
        if self._pool_failed:
            return f"the warm pool could not be used: {self._pool_failed}"
        return next(
            (worker.fresh_because for worker in self._workers if worker.fresh_because), None
        )

    def _spawn(self, launchers: Sequence[Launcher]) -> None:
        for launcher in launchers:
            if self._stopped:  # stopped meanwhile: a launcher that is not started needs no stop
                return
            launcher.spawn(self._python)

    @property
    def over(self) -> bool:
        return self._last is not None and self._last.phase == "ended"

    async def give_up(self, why: str) -> None:
        """End every process at once, and report the end: an error of the server
        prevents that it is followed.
        """
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*(launcher.destroy() for launcher in self._launchers))
        if not self.over:
            self._tell("ended", Reason.SERVER_ERROR, why, ended_at=datetime.now(timezone.utc))

    def stop(self, grace_s: float, *, interrupt: bool = False) -> None:
        """End every process of the attempt; the end is reported when none is alive."""
        self._stopped = self._stopped or not any(worker.failed for worker in self._counted)
        self._stop_launchers(grace_s, interrupt=interrupt)

    async def stacks(self) -> list[StackDump]:
        return list(await asyncio.gather(*(launcher.stacks() for launcher in self._launchers)))

    def begin_session(self, request: Mapping[str, object]) -> socket.socket:
        """Begin a session of the user; blocks. Raises NotFound, Conflict."""
        worker = worker_of(request, len(self._launchers), self._launchers[0].processes())
        return self._launchers[worker].begin_session(request)

    # --- changes of its workers

    @property
    def _workers(self) -> list[WorkerStatus]:
        return [launcher.worker for launcher in self._launchers]

    @property
    def _survived(self) -> frozenset[int]:
        """Lost workers without which the attempt continues."""
        if self._elastic is None or not self._began:
            return frozenset()
        return verdict.survived(self._workers, self._elastic, self._returned)

    @property
    def _counted(self) -> list[WorkerStatus]:
        survived = self._survived
        return [worker for worker in self._workers if worker.number not in survived]

    def _changed(self) -> None:
        counted = self._counted
        failed = [worker for worker in counted if worker.failed]
        if len(failed) == 1:
            self._lost_first = failed[0].stage is Stage.LOST
        step = verdict.next_step(counted, self._stopped)
        if step is Step.STOP and not self._stops:
            self._stop_launchers(self.attempt.spec.grace_s, of_peer=not self._stopped)
        if step is Step.GO and self._may_go:
            self._began = True
            for launcher in self._launchers:
                if launcher.worker.stage is Stage.READY:
                    launcher.instruct(control.order(control.GO))
        # the gang does not need them any more
        if self._returned and counted[0].stage is Stage.ENDED:
            for number in self._returned:
                if not self._launchers[number].worker.stage.over:
                    stop = control.order(control.STOP, grace_s=self.attempt.spec.grace_s)
                    self._later(TOO_LATE_S, partial(self._launchers[number].instruct, stop))
        starting = [worker for worker in counted if worker.stage in (Stage.STARTING, Stage.READY)]
        missing = {
            *self._survived,
            *(worker.number for worker in starting if worker.number in self._returned),
        }
        runs = any(worker.stage is Stage.STARTED for worker in counted)
        if runs and not self._stopped and len(starting) == len(missing - self._survived):
            message = verdict.who_is_missing(missing, len(self._launchers))
            quiet = verdict.quiet(self._workers)
            why = self.fresh_because if self._pool is not None else self._never_warm
            notes = () if why is None else (f"its processes were started, not forked: {why}",)
            self._observe("running", Reason.RUNNING, message, quiet=quiet, notes=notes)

    def _stop_launchers(
        self, grace_s: float, *, of_peer: bool = False, interrupt: bool = False
    ) -> None:
        """`of_peer`: because another worker has failed."""
        if (grace_s, interrupt) in self._stops:
            return
        self._stops.add((grace_s, interrupt))
        more = {"interrupt": True} if interrupt else {}
        sent = control.order(control.STOP, grace_s=None if of_peer else grace_s, **more)
        for launcher in self._launchers:
            launcher.instruct(sent)
            # it may be unpacking; without ranks there is no grace
            if launcher.worker.stage is Stage.STARTING:
                self._later(UNPACKING_S, launcher.kill)
            self._later(grace_s + NO_ANSWER_S, launcher.kill)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, act))

    # --- observations

    def _report_starting(self) -> None:
        ready = sum(worker.stage is not Stage.STARTING for worker in self._workers)
        if ready < len(self._workers) and not self._stops:
            self._observe(
                "waiting", Reason.STARTING, f"{ready} of {len(self._workers)} workers are prepared"
            )

    def _end(self, end: Verdict, conflicts: tuple[str, ...] = ()) -> None:
        self._observe(
            "ended",
            end.reason,
            end.message,
            notes=(
                *verdict.notes(self._workers),
                *outputs.notes(worker.report for worker in self._workers),
                *conflicts,
            ),
            started_at=verdict.started_at(self._counted),
            ended_at=verdict.ended_at(self._workers) or datetime.now(timezone.utc),
            first_failing=end.first_failing,
            stacks=verdict.last_stacks(self._workers),
        )

    def _observe(self, phase: Phase, reason: Reason, message: str, **known: Unpack[_Told]) -> None:
        known["workers"] = tuple(worker.info() for worker in self._workers)
        self._tell(phase, reason, message, **known)

    def _tell(self, phase: Phase, reason: Reason, message: str, **known: Unpack[_Told]) -> None:
        attempt = self.attempt
        seen = Observation(attempt.job_id, attempt.number, phase, reason, message, **known)
        if seen != self._last:
            self._last = seen
            self._report(seen)


# --- the record


def read_record(attempt_dir: Path) -> Record | None:
    """None: the attempt was never started. Raises ServerError: it was,
    and the file can't be read.
    """
    path = attempt_dir / RECORD
    if (data := read_json(str(path))) is None and not path.exists():
        return None
    try:
        return Record(
            **(data or {}) | {"grant": tuple(tuple(gpus) for gpus in (data or {})["grant"])}
        )
    except (KeyError, TypeError) as error:
        raise ServerError(f"the record {path} can't be read: {type(error).__name__}") from error


def _make_durable(attempt_dir: Path) -> None:
    """Return when the record would survive a power cut: ranks start only then,
    or they could start twice.
    """
    for path in (attempt_dir / RECORD, attempt_dir, attempt_dir.parent, attempt_dir.parent.parent):
        sync(path)
