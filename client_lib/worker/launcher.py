"""Runs one worker, from its plan to its report: prepare -> wait for "go" -> run the ranks -> (stop)
-> drain (read the last output, end the processes that ranks left over) -> report.

The phases follow each other on one loop. Runtimes control the launcher through
launcher_protocol.control, and read the files of launcher_protocol.directory.
"""

import contextlib
import errno
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Callable, List, Optional

from client_lib import durable
from client_lib.durable import read_json, write_json
from client_lib.launcher_protocol import control, report
from client_lib.launcher_protocol.checkpoint_lines import told
from client_lib.launcher_protocol.control import ControlServer
from client_lib.launcher_protocol.directory import (
    Directory,
    Taken,
    acquire,
    give_up_reserve,
    has_content,
    is_removed,
    take_reserve,
)
from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.launcher_protocol.outcome import PEERS_END_S, Ended, WorkerOutcome, of_ranks
from client_lib.launcher_protocol.plan import WorkerPlan, from_json
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.launcher_protocol.reasons import CANCELLED, START_FAILED, CannotStart
from client_lib.launcher_protocol.report import ProcessReport
from client_lib.launcher_protocol.termination import shortened
from client_lib.worker import rank_end
from client_lib.worker.loop import Loop, Timer
from client_lib.worker.memory import MemoryKills, memory_kills
from client_lib.worker.preparation import Preparation
from client_lib.worker.rank_watch import RankWatch
from client_lib.worker.ranks import Exit, Ranks, execute
from client_lib.worker.system import System, choose, forbid_new_privileges, restore_open_files
from client_lib.worker.trainer_status import offer_status
from client_lib.worker.worker_log import WorkerLog

if TYPE_CHECKING:
    from client_lib.worker.outputs.collector import Collector
    from client_lib.worker.session import Sessions
    from client_lib.worker.warm.rank import Warm

# time in which left-over processes (data loaders, resource trackers) may end by themselves
_SETTLE_S = 0.5
_LEFT_OVER_GRACE_S = 5.0  # time between their SIGTERM and their SIGKILL
_PIPE_S = 1.0  # a silent pipe is closed after this time if no process of the ranks is alive
_POLL_S = 0.01
_RETRY_S = 0.5
_ANSWER_S = 0.3  # longest delay of a stop for ranks that unwind; one that is in C does not answer
# ranks that have printed nothing for this time are asked for their stacks before they are stopped
_STILL_S = 10.0
_STACKS_S = 2.0  # longest delay of the stop for that
_STACKS_MAX = 1024 * 1024  # characters of the stacks in the report
_EXCEPTION_MAX = 200  # characters of an exception in a note
_ABANDONED_S = 2.0  # how often a worker checks that its directory still exists
# checks in a row that find no directory: a network file system may be away for some seconds
_ABANDONED_CHECKS = 4


class Launcher:
    """`run` returns when the report is written. The caller holds the lock of the directory."""

    def __init__(
        self, directory: Directory, plan: WorkerPlan, system: System, warm: "Optional[Warm]" = None
    ) -> None:
        """`warm`: the warm pool from which this process was forked; its ranks can be
        forked from this process.
        """
        self._directory = directory
        self._plan = plan
        self._system = system
        self._warm = warm
        self._writer = SegmentWriter(
            directory.log, plan.log_limit_bytes, plan.segment_bytes, (plan.log_offset, plan.log_seq)
        )
        self._loop = Loop(lambda: self._log.flush())
        self._log = WorkerLog(self._loop, self._writer)
        self._ranks = Ranks(system, self._log.add_pipe)
        self._preparation = Preparation(
            plan, directory, system, self._log, self._loop, self._become_ready, self._never_ran
        )
        self._control: ControlServer  # these two are made by `run`
        self._watch: RankWatch
        self._processes: List[Process] = []
        self._ordered = False  # "go" has come
        self._gone = False  # and was carried out, after the preflight
        self._is_stopped = False  # by an order, or because another worker has failed
        self._peer_failed = False  # a rank of another worker has failed
        self._cancelled = False  # by an order that came before any failure
        # taken before the stop; []: they could not be
        self._stacks: Optional[List[ProcessReport]] = None
        self._grace_after_stacks: Optional[float] = None  # of a stop that waits for the stacks
        self._kill_timer: Optional[Timer] = None
        self._grace_is_over = False  # the ranks were killed
        self._interrupts = False  # the order to stop asks for SIGINT in place of SIGTERM
        self._outcome: Optional[WorkerOutcome] = None  # set if the ranks never ran
        self._drain_since: Optional[float] = None
        self._kills_before = MemoryKills(0, 0)  # before the ranks
        self._last_lines: List[str] = []  # of the command that failed before the ranks
        self._notes: List[str] = []
        self._outputs: Optional[Collector] = None
        self._sessions: Optional[Sessions] = None

    def run(self, agent: Optional[socket.socket] = None) -> None:
        reset_by_execute = {signal.SIGPIPE, signal.SIGXFSZ}
        for signum in signal.valid_signals() - reset_by_execute:
            # by nohup, or a shell that started the server behind it
            if signal.getsignal(signum) is signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        # a launcher that continues the work of another may have none
        with contextlib.suppress(OSError):
            take_reserve(self._directory.reserve, self._plan.processes_per_worker)
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.on_signal(signum, self._terminate)
        self._control = ControlServer(
            self._directory.control, self._carry_out, self._loop, self._begin_session
        )
        if agent is not None:
            self._control.take(agent)
        self._watch = RankWatch(
            self._plan,
            self._directory,
            self._system,
            self._loop,
            self._log,
            self._ranks,
            self._control,
            self._note,
        )
        self._loop.call_later(0.0, self._preparation.start)
        self._loop.call_later(_ABANDONED_S, self._end_if_abandoned)
        self._loop.run()
        self._control.close()
        give_up_reserve(self._directory.reserve)

    def _note(self, text: str) -> None:
        """Log a message now, and report it for the job's events."""
        self._log.add_message(text)
        self._notes.append(text)

    def _become_ready(self, plan: WorkerPlan, processes: List[Process]) -> None:
        self._plan = plan
        self._processes = processes
        if plan.outputs and plan.outputs_to:
            from client_lib.worker.outputs.collector import Collector  # here: many jobs keep none

            self._outputs = Collector(
                self._loop, plan, plan.working_dir_in(self._directory), self._directory.outputs
            )
        if plan.log_file:
            script = plan.script_in(self._directory)
            folders = [plan.working_dir_in(self._directory)]
            if script:
                folders.append(os.path.dirname(script))
            self._log.tail(plan.log_file, folders)
        if plan.worker == 0 and plan.last_good and not self._goes_back(plan, plan.last_good):
            return
        if plan.worker == 0 and has_content(plan.checkpoint_dir):
            from client_lib.worker.damaged_checkpoints import (
                DamagedCheckpoints,
            )  # resumed jobs alone

            DamagedCheckpoints(
                self._loop,
                plan.checkpoint_dir,
                plan.moves_damaged,
                self._note,
                self._announce_ready,
            ).start()
        else:
            self._announce_ready()

    def _goes_back(self, plan: WorkerPlan, last_good: List[Optional[float]]) -> bool:
        """Move checkpoints from after an alarm away; False: they can't be moved, and the worker has
        ended."""
        from client_lib.worker.earlier_step import go_back_before  # here: few attempts do so

        step, time_ = last_good
        try:
            said = go_back_before(plan.checkpoint_dir, step, time_ or 0.0, plan.job, plan.attempt)
        except OSError as error:
            why = "checkpoints from after the alarm can't be moved aside: %s" % error
            self._never_ran(CannotStart(START_FAILED, told(why)))
            return False
        if said:
            self._note(told(said))
        return True

    def _announce_ready(self) -> None:
        if self._outcome is None:
            self._control.announce(control.READY)

    def _end_if_abandoned(self, missing: int = 0) -> None:
        """End the worker if its directory was removed with the server's data, else look again: a
        killed server is restarted, and its workers go on. `missing`: checks in a row that found no
        directory."""
        missing = missing + 1 if is_removed(self._directory.path) else 0
        if missing < _ABANDONED_CHECKS:
            self._loop.call_later(_ABANDONED_S, lambda: self._end_if_abandoned(missing))
        elif self._gone or self._outcome:
            self._terminate()
        else:
            self._never_ran(CannotStart(CANCELLED, "its directory was removed"))

    def _carry_out(self, instruction: control.Message) -> None:
        if instruction.get("do") == control.GO:
            if self._processes and not self._ordered and self._outcome is None:
                self._ordered = True
                self._preparation.preflight(self._processes, self._start)
        elif instruction.get("do") == control.STOP:
            grace_s = instruction.get("grace_s")
            self._peer_failed = grace_s is None
            self._interrupts = instruction.get("interrupt") is True
            self._stop(float(grace_s) if isinstance(grace_s, (int, float)) else self._plan.grace_s)
        elif instruction.get("do") == control.STACKS:
            self._watch.take_stacks(lambda: self._control.tell(control.STACKS))

    def _begin_session(self, request: control.Message, peer: socket.socket) -> None:
        """Start a process that serves the session of this connection."""
        can_not_fork = contextlib.suppress(OSError, ImportError)
        with contextlib.closing(peer), can_not_fork:
            if self._ranks.running:
                from client_lib.worker.session import Sessions  # here: few jobs have any

                self._sessions = self._sessions or Sessions(self._system, self._processes)
                self._sessions.begin(request, peer)

    def _start(self) -> None:
        self._gone = True
        if self._plan.has_agent:
            self._log.take_rank_pipes(self._directory.rank_pipes)
        if self._plan.observe:
            # a file system without named pipes: the job runs without client_lib.log
            with contextlib.suppress(OSError):
                self._log.take_metrics(self._directory.metrics)
                offer_status(
                    self._plan, self._processes, self._loop, self._directory, self._log.add_metrics
                )
            if self._plan.metrics:
                self._log.read_metrics(self._plan.metrics)
        self._kills_before = memory_kills()
        fresh_because = self._warm.refusal(self._plan, self._processes) if self._warm else None
        warm = self._warm is not None and fresh_because is None
        try:
            self._ranks.start(self._processes, self._warm.run if self._warm and warm else execute)
        except OSError as error:
            message = "could not start %s: %s" % (error.filename, error.strerror)
            self._outcome = WorkerOutcome(1, START_FAILED, message, None)
            self._log.add_message(message)
            self._end_ranks(0.0)
            self._reap()
            return
        self._record()
        if self._outputs:
            self._outputs.start()
        self._control.announce(
            control.STARTED,
            warm=warm,
            fresh_because=fresh_because,
            stacks=self._plan.observe,
            sessions=True,
            threads=self._plan.default_threads,
        )
        self._watch.start(self._processes[0], warm)

    def _record(self) -> None:
        """Write processes.json, by which the runtime cleans up if this process
        dies. A full disk delays it.
        """
        try:
            write_json(self._directory.processes, self._ranks.record())
        except OSError:
            self._loop.call_later(_RETRY_S, self._record)

    # --- the end of the ranks: on request, or after the failure of a rank

    def _terminate(self) -> None:
        self._interrupts = False
        self._stop(self._plan.grace_s)

    def _stop(self, grace_s: float) -> None:
        """Stop on request. After the failure of a rank this only shortens the grace: the failure
        remains the reason. If the ranks have printed nothing for long, their stacks are taken
        first, for the report."""
        self._is_stopped = True
        if self._outputs:
            self._outputs.hurry(grace_s)
        if not self._gone:
            self._never_ran(CannotStart(CANCELLED, "stopped before its processes were started"))
        if not self._ranks.running:
            return
        self._cancelled = self._cancelled or not self._ranks.failed
        if self._grace_after_stacks is not None:
            self._grace_after_stacks = min(self._grace_after_stacks, grace_s)
            return
        silent_s = min(
            time.monotonic() - self._log.active_at, time.time() - (self._ranks.started_at or 0.0)
        )
        if self._stacks is not None or not self._plan.observe or silent_s < _STILL_S:
            self._end_ranks(grace_s)
        else:
            self._grace_after_stacks = grace_s
            self._loop.call_later(_STACKS_S, self._end_after_stacks)
            self._watch.take_stacks(self._end_after_stacks)

    def _end_after_stacks(self) -> None:
        if self._grace_after_stacks is None:
            return
        grace_s = self._grace_after_stacks
        self._grace_after_stacks = None
        self._stacks = (read_json(self._directory.stacks_taken) or {}).get("processes") or []
        self._end_ranks(grace_s)

    def _end_others(self) -> None:
        """End the other ranks after a failure. If that rank only lost a peer, wait
        before: the peer may still end.
        """
        wait_s = self._time_for_peers_s()
        if wait_s > 0:
            self._loop.call_later(wait_s, self._end_others)
        elif self._ranks.running and self._kill_timer is None:
            self._end_ranks(self._plan.grace_s)

    def _end_ranks(self, grace_s: float, since: Optional[float] = None) -> None:
        """Ask all running ranks to end, and kill them after the grace; a second call can only
        shorten the grace. A rank that unwinds may be the cause: it can write its exception before.
        `since`: monotonic time of the first call."""
        since = time.monotonic() if since is None else since
        # a rank, here or in another worker, may have failed only because it lost one that runs here
        cause_is_open = (
            self._plan.others_may_wait
            and (self._ranks.failed or self._peer_failed)
            and self._lost_peers()
        )
        waits = cause_is_open and not self._ranks.unwinding_is_known()
        if waits and time.monotonic() - since < _ANSWER_S:
            self._loop.call_later(_POLL_S, lambda: self._end_ranks(grace_s, since))
            return
        self._ranks.ask_to_end(signal.SIGINT if self._interrupts else signal.SIGTERM)
        if self._kill_timer is None or time.monotonic() + grace_s < self._kill_timer.due:
            if self._kill_timer:
                self._kill_timer.cancel()
            self._kill_timer = self._loop.call_later(grace_s, self._end_grace)

    def _end_grace(self) -> None:
        self._grace_is_over = True
        self._ranks.kill()

    def _time_for_peers_s(self) -> float:
        """Seconds that other ranks still have to end by themselves; 0 if a rank
        failed without losing a peer.
        """
        if self._is_stopped or not self._ranks.failed or not self._lost_peers():
            return 0.0
        passed = time.time() - self._ranks.failed[0].ended_at
        return PEERS_END_S - passed if 0 <= passed < PEERS_END_S else 0.0

    def _lost_peers(self) -> bool:
        """True if each rank that failed did so because it lost a peer."""
        return all(self._ended(exit).lost_peer for exit in self._ranks.failed)

    def _reap(self) -> None:
        if not self._gone:
            self._preparation.reap()
        ended = self._ranks.reap()
        if self._ranks.running:
            if any(exit.exit_code != 0 for exit in ended):
                # after the last output of these was read
                self._loop.call_later(0.0, self._end_others)
        elif self._gone and self._drain_since is None:
            self._drain_since = time.monotonic()
            if self._sessions:
                self._sessions.end()
            self._drain()

    def _drain(self) -> None:
        """After the end of all ranks: end left-over processes, read the pipes
        to their end, then report.
        """
        assert self._drain_since is not None
        now = time.monotonic()
        passed = now - self._drain_since
        silent = now - max(self._drain_since, self._log.active_at)
        left = bool(self._ranks.left_over())
        if not left and self._log.stalled:
            self._use_reserve()
        is_read = self._log.open_pipes == 0 or (silent > _PIPE_S and not self._log.stalled)
        # our report stops other workers
        may_report = self._plan.n_workers == 1 or self._time_for_peers_s() == 0
        if not left and is_read and may_report:
            self._system.close()
            if self._outputs and self._ranks.started_at is not None:
                if self._ranks.failed:
                    # the other workers are stopped only after the report
                    self._outputs.hurry(self._plan.grace_s)
                # no process of the ranks is alive, so the files are complete
                self._outputs.finish(self._finish)
            else:
                self._finish()
            return
        # after a stop no time to end by themselves: they have waited for the ranks
        if left and (self._cancelled or passed > _SETTLE_S):
            self._ranks.end_left_over(kill=self._is_late(passed))
        self._loop.call_later(_POLL_S if passed < 1.0 else 10 * _POLL_S, self._drain)

    def _is_late(self, passed_s: float) -> bool:
        """True if left-over processes have had their time. A shell may end at a stop before what it
        has started: that has the grace. `passed_s`: since the end of the ranks."""
        if self._cancelled and self._grace_is_over:
            return passed_s > _SETTLE_S  # they may have got SIGTERM with the end of the grace
        is_below_a_command = self._cancelled and self._plan.python is None
        grace_s = min(self._plan.grace_s, _LEFT_OVER_GRACE_S)
        return not is_below_a_command and passed_s > _SETTLE_S + grace_s

    def _never_ran(self, why: CannotStart) -> None:
        if self._outcome is None:
            code = 0 if why.reason == CANCELLED else why.exit_code
            self._last_lines = list(why.last_lines)
            self._outcome = WorkerOutcome(code, why.reason, str(why), None)
            self._log.add_message(self._outcome.message)
            self._preparation.kill()
            self._system.close()
            self._finish()

    def _finish(self) -> None:
        self._note_tracebacks()
        self._watch.finish()
        self._log.finish()
        self._report()

    def _note_tracebacks(self) -> None:
        """Note a traceback that ends the output of a command which has succeeded: a shell may hide
        the failure of a program, which may also have logged an exception that it handled."""
        if self._plan.python is not None or self._is_stopped:
            return
        for exit in self._ranks.exits:
            lines = self._log.printed_by(exit.rank).lines
            found = rank_end.exception_at_the_end(lines) if exit.exit_code == 0 else None
            if found is not None:
                self._note(
                    "rank %d ended with exit code 0, and its output ends with a traceback, of %s "
                    "(a shell gives the code of the last command of a pipe, unless it runs "
                    "`set -o pipefail`)" % (exit.rank, shortened(found, _EXCEPTION_MAX))
                )

    def _report(self) -> None:
        """Write the report, the last step. A full disk delays it."""
        try:
            if not self._log.flush():
                raise OSError(errno.ENOSPC, "the log is not written yet")
            write_json(self._directory.report, self._report_content(), durable=True)
        except OSError as error:
            # else it was removed with the server's data: there is no reader
            if not is_removed(self._directory.path):
                if not durable.is_full(error):
                    raise
                self._use_reserve()
                self._loop.call_later(_RETRY_S, self._report)
                return
        self._writer.close()
        self._control.announce(control.ENDED)
        self._loop.stop()

    def _use_reserve(self) -> None:
        self._log.ends = True
        give_up_reserve(self._directory.reserve)

    def _report_content(self) -> report.Report:
        ranks = [self._ended(exit) for exit in self._ranks.exits]
        kills = memory_kills()
        outcome = self._outcome or of_ranks(
            ranks,
            self._cancelled,
            kills.all - self._kills_before.all,
            kills.of_group - self._kills_before.of_group,
        )
        content = report.as_json(
            self._plan,
            outcome,
            ranks,
            self._ranks.started_at,
            time.time(),
            self._log.next_seq,
            self._writer.offset,
        )
        if self._outputs:
            content["outputs"] = self._outputs.report()
        if self._last_lines:
            content["last_lines"] = self._last_lines
        if self._notes:
            content["notes"] = self._notes
        if self._stacks:
            # here: loaded only where stacks were taken
            from client_lib.worker.stacks import within_bounds

            content["stacks"] = within_bounds(self._stacks, _STACKS_MAX)
        return report.within_bounds(report.storable(content))

    def _ended(self, exit: Exit) -> Ended:
        error_file = self._directory.error_file(exit.rank)
        rank = exit.rank
        if exit.exit_code and self._plan.has_agent:
            rank = rank_end.failed_below(error_file, self._log.last_lines_of_agent(rank), rank)
        return rank_end.ended(
            exit._replace(rank=rank),
            error_file,
            self._log.printed_by(rank),
            self._plan.owner,
            os.path.join(self._directory.stacks, "ended-%d" % rank),
        )


def run_worker(
    path: str,
    warm: "Optional[Warm]" = None,
    on_locked: Callable[[], None] = lambda: None,
    agent: Optional[socket.socket] = None,
) -> int:
    """Run the worker whose plan is in the directory `path`. Returns the exit code of this process.

    `warm`: see Launcher. `on_locked` is called when this process holds the lock of the directory.
    `agent`: a connection that is served like connections to the control socket."""
    restore_open_files()
    directory = Directory(path)
    with open(directory.plan, encoding="utf-8") as file:
        plan = from_json(file.read())
    if plan.no_new_privileges:
        forbid_new_privileges()
    # before the lock: the portable one forks, and the fork must not hold the lock
    system = choose()
    try:
        acquire(directory.lock)
        on_locked()
        Launcher(directory, plan, system, warm).run(agent)
    except Taken as taken:
        sys.stderr.write("%s\n" % taken)
        return taken.exit_code
    except OSError as error:
        if durable.is_full(error):
            give_up_reserve(directory.reserve)  # room for the text of the error
        raise
    return 0
