"""The life of the agent: claim the worker, fetch the code, run the launcher, deliver, exit. The
main thread decides.

Python compiles the zipapp at each start if its version is not the server's, 5 to 20 ms a module:
modules for the end, or for few jobs, are imported where they are used.
"""

import os
import queue
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Callable, NoReturn, Optional, TypeVar, Union

from client_lib import durable
from client_lib.durable import last_line, make_private_folders, read_json, sha256_of, write_json
from client_lib.launcher_protocol import control, reasons
from client_lib.launcher_protocol.control import ControlConnection
from client_lib.launcher_protocol.directory import ALREADY_RAN, Directory, renew, take_reserve
from client_lib.launcher_protocol.outcome import WorkerOutcome
from client_lib.launcher_protocol.plan import ELASTIC, WorkerPlan
from client_lib.launcher_protocol.reasons import CannotStart
from client_lib.worker.memory import out_of_memory_kills
from client_lib.worker.pod import LEAVE, AgentEvent, AgentThread, Backoff, Instruction, warn
from client_lib.worker.pod.log_carriers import ServerCarrier, Spool, StdoutCarrier
from client_lib.worker.pod.server_channel import CONFLICT, Replaced, ServerChannel, ServerClient
from client_lib.worker.pod.settings import (
    FUNCTION_RUNNER,
    PodFiles,
    PodSettings,
    own_plan,
    read_plan,
    read_settings,
)
from client_lib.worker.programs import runner_file
from client_lib.worker.server_connection import Rejected, Unreachable
from client_lib.worker.system import ended_children

if TYPE_CHECKING:
    from client_lib.launcher_protocol.report import Report
    from client_lib.worker.pod.peer_channel import PeerChannel

T = TypeVar("T")

STOPPED = 143  # exit code of a worker that was stopped: 128 + SIGTERM
_POLL_S = 0.2  # between two checks of the spool's size
# longest time that stdout may take after the end: the server has the log in any case
_PRINT_S = 10.0
# of the log of an ended worker, which the cluster then keeps as a whole: the kubelet begins a new
# file at 10 MiB, its own marks included, and shows the newest alone
_KEPT_BY_CLUSTER = 4 * 1024 * 1024
_DIGEST_TRIES = 3
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_POD_UID")  # to the launcher


def main(root: str) -> int:
    files = PodFiles(root)
    try:
        pod = read_settings(files, os.environ)
        plan = read_plan(files)
        with open(files.token, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, ValueError, KeyError) as error:
        warn("this pod cannot start: %r" % error)
        return 1
    return Agent(files, pod, plan, token).run()


class NeverReached(Exception):
    """The server has never answered this worker: its address may be wrong, or the server was
    removed.
    """


class Agent:
    """`run` returns the exit code of the container."""

    def __init__(self, files: PodFiles, pod: PodSettings, plan: WorkerPlan, token: str) -> None:
        self._files = files
        self._pod = pod
        self._new_server = partial(ServerClient, pod, token, files.authorities)
        self._plan = plan._replace(worker=pod.worker)
        self._events: "queue.SimpleQueue[AgentEvent]" = queue.SimpleQueue()
        self._terminated = False
        self._interrupted = False  # the server ordered SIGINT for the ranks
        self._told = ""  # the newest instruction
        self._replaced = False
        self._ended_at = 0.0
        self._may_leave = False  # nothing but the log keeps the pod of the ended worker
        self._launcher = LauncherProcess(files.directory, self._events.put)
        self._spool = Spool(files.directory.log, pod.spool_bytes)
        self._to_stdout: Optional[StdoutCarrier] = None
        self._to_server: Optional[ServerCarrier] = None
        self._channel: "Union[ServerChannel, PeerChannel]"
        if pod.server_url is None:
            from client_lib.worker.pod.peer_channel import PeerChannel

            self._channel = PeerChannel(pod, token, self._events.put)
        else:
            newest = self._spool.newest
            control_path = files.directory.control
            self._channel = ServerChannel(self._new_server, newest, control_path, self._events.put)

    def run(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._terminate)  # process 1 ignores a signal without a handler
        signal.signal(signal.SIGCHLD, lambda *_: self._events.put(None))  # wakes the main thread
        kills = out_of_memory_kills()
        make_private_folders(self._files.directory.path)
        # before the first thread; it loads its modules while the server answers
        self._launcher.fork()
        try:
            self._claim()
            self._channel.start()
            if self._launcher.error is not None:
                raise self._launcher.error
            if self._plan.type == ELASTIC:
                self._resume()
            with durable.naming(self._files.directory.path):
                self._begin()
        except Replaced as replaced:
            warn("%s: nothing is started here" % replaced)
            self._write_termination_message(self._own_report(reasons.START_FAILED, str(replaced)))
            return self._end_replaced()
        except NeverReached as never:
            warn(str(never))
            self._write_termination_message(self._own_report(reasons.NODE_LOST, str(never)))
            return 1
        except CannotStart as ended:
            return self._deliver(self._own_report(ended.reason, str(ended)))
        except OSError as error:
            reason = reasons.STORAGE_FULL if durable.is_full(error) else reasons.START_FAILED
            return self._deliver(
                self._own_report(reason, "the worker could not be prepared: %s" % error)
            )
        self._follow()
        if self._replaced:
            return self._end_replaced()
        # a rank could write a report, too: it counts only after a normal end of the launcher
        report: "Optional[Report]" = None
        if self._launcher.status == 0:
            report = read_json(self._files.directory.report)  # type: ignore[assignment]
        return self._deliver(report or self._report_of_dead(kills))

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    def _end_replaced(self) -> int:
        """Another pod owns the worker. The container of an elastic job stays: the kubelet
        would restart it forever.
        """
        while self._plan.type == ELASTIC and not self._terminated:
            time.sleep(_POLL_S)
        return ALREADY_RAN

    # --- before anything runs

    def _claim(self) -> None:
        """Raises NeverReached, CannotStart, Replaced."""
        give_up_at = time.monotonic() + self._pod.claim_s

        def claim() -> None:
            try:
                self._channel.claim()
            except Unreachable as error:
                if time.monotonic() < give_up_at:
                    raise
                raise NeverReached(
                    "worker %d has not reached its server at %s within %.3g min: %s"
                    % (self._pod.worker, self._pod.server_url, self._pod.claim_s / 60, error)
                ) from error

        self._until_answered(claim)

    def _until_answered(self, call: Callable[[], T]) -> T:
        """The value of `call`, which is repeated while it raises Unreachable.
        Raises CannotStart, Replaced.
        """
        backoff = Backoff()
        warned = ""
        while True:
            try:
                return call()
            except Unreachable as error:
                if str(error) != warned:
                    warned = str(error)
                    warn("waits for the server: %s" % error)
            self._check_stop()
            backoff.sleep()

    def _check_stop(self) -> None:
        """Raises CannotStart, Replaced."""
        while not self._events.empty():
            self._note(self._events.get())
        if self._replaced:
            raise Replaced("this worker was taken over by another pod")
        if self._terminated or self._told == control.STOP:
            raise CannotStart(reasons.CANCELLED, "stopped before its processes were started")

    def _note(self, event: AgentEvent) -> None:
        if isinstance(event, Instruction) and event.do == LEAVE:
            self._replaced = True
        elif isinstance(event, Instruction) and event.do != control.STACKS:
            self._told = event.do

    def _resume(self) -> None:
        """Continue after the last pod of this worker, or the last start of
        this container, has ended.
        """
        if os.path.exists(self._files.directory.lock):
            renew(self._files.directory)
        try:
            offset, seq = self._until_answered(self._new_server().log_end)
        except Rejected as rejected:
            if rejected.status == CONFLICT:
                raise Replaced(str(rejected)) from rejected
            raise OSError("the server does not take its log: %s" % rejected) from rejected
        self._plan = self._plan._replace(log_offset=offset, log_seq=seq)
        self._spool.begin = (seq, offset)

    def _begin(self) -> None:
        """Raises CannotStart, Replaced, OSError."""
        files = self._files
        snapshot = self._input("snapshot", self._pod.snapshot) if self._pod.snapshot else None
        function = None
        if self._pod.function:
            function = self._input("function", None), runner_file(FUNCTION_RUNNER, files.directory)
        if self._plan.inputs and not os.path.isdir(files.directory.inputs):
            self._unpack_inputs(files.directory.inputs)
        self._plan = own_plan(self._plan, self._pod, files, snapshot, function)
        write_json(files.directory.plan, self._plan._asdict())
        take_reserve(files.directory.reserve, self._plan.processes_per_worker)
        self._check_stop()
        self._to_stdout = StdoutCarrier(self._spool)
        self._to_stdout.start()
        if self._pod.server_url is not None:
            self._to_server = ServerCarrier(self._new_server(), self._spool)
            self._to_server.start()
        self._launcher.start()

    def _unpack_inputs(self, folder: str) -> None:
        from client_lib.launcher_protocol.archive import UNLIMITED, ArchiveRefused, unpack

        if self._pod.server_url is None:  # which keeps no outputs then
            for each in self._plan.inputs:
                os.makedirs(os.path.join(folder, each))
            return
        fetched = self._fetched("inputs", None)
        try:
            unpack(fetched, folder, UNLIMITED, UNLIMITED, self._plan.keep_free_bytes)
        except ArchiveRefused as refused:
            message = "the outputs of the jobs before can't be unpacked: %s" % refused
            raise CannotStart(reasons.CODE_FETCH, message) from refused
        os.unlink(fetched)

    def _input(self, what: str, sha256: Optional[str]) -> str:
        """Path of the snapshot or the function. `sha256` None: the digest is not known,
        and any file is accepted.
        """
        mounted = os.path.join(self._files.code, "snapshot.tar.gz" if what == "snapshot" else what)
        if not os.path.exists(mounted):
            return self._fetched(what, sha256)
        if sha256 is not None and sha256_of(mounted) != sha256:
            raise CannotStart(
                reasons.CODE_FETCH,
                "the mounted %s does not have the digest that was submitted" % what,
            )
        return mounted

    def _fetched(self, what: str, sha256: Optional[str]) -> str:
        if self._pod.server_url is None:
            raise CannotStart(
                reasons.CODE_FETCH, "the %s is not mounted, and no server can give it" % what
            )
        server = self._new_server()
        target = os.path.join(self._files.directory.path, what + ".fetched")
        for _ in range(_DIGEST_TRIES):
            try:
                self._until_answered(lambda: server.fetch(what, target, self._check_stop))
            except Rejected as rejected:
                message = "the server does not give the %s: %s" % (what, rejected)
                raise CannotStart(reasons.CODE_FETCH, message) from rejected
            if sha256 is None or sha256_of(target) == sha256:
                return target
        raise CannotStart(
            reasons.CODE_FETCH, "the fetched %s does not have the digest that was submitted" % what
        )

    # --- while it runs

    def _follow(self) -> None:
        """Return when the launcher is gone."""
        asked_to_stop = False
        while True:
            self._look_after()
            if self._launcher.status is not None:
                return
            if self._terminated and not (asked_to_stop or self._interrupted):
                asked_to_stop = True
                self._launcher.instruct(control.order(control.STOP, grace_s=self._plan.grace_s))
            self._handle(self._next_event())

    def _next_event(self) -> AgentEvent:
        """The next event; None also if there is none within _POLL_S."""
        try:
            return self._events.get(timeout=_POLL_S)
        except queue.Empty:
            return None

    def _handle(self, event: AgentEvent) -> None:
        self._note(event)
        if event is None:
            return
        if isinstance(event, Instruction):
            if event.do == LEAVE:
                warn("this worker was taken over by another pod")
                self._launcher.kill()
            elif event.do == control.STOP:
                # a pod that is deleted gets SIGTERM a moment later
                self._interrupted = event.interrupt
                more = {"interrupt": True} if event.interrupt else {}
                order = control.order(control.STOP, grace_s=event.grace_s, **more)
                self._launcher.instruct(order)
            elif event.do in (control.GO, control.STACKS):
                self._launcher.instruct(control.order(event.do))
        elif event.get("event") in (control.READY, control.STARTED):
            self._channel.send_state(event["event"])
        elif event.get("event") == control.STACKS and isinstance(self._channel, ServerChannel):
            taken = read_json(self._files.directory.stacks_taken) or {}
            self._channel.send_stacks(taken.get("processes") or [])
        elif event.get("event") == control.QUIET and isinstance(self._channel, ServerChannel):
            self._channel.send_quiet(event["ranks"])

    def _look_after(self) -> None:
        """Reap the children that have ended (the launcher, and the orphans of the
        pod), and bound the spool.
        """
        for pid, status in ended_children():
            self._launcher.reaped(pid, status)
        carriers = filter(None, (self._to_stdout, self._to_server))
        dropped = self._spool.tidy(min((carrier.done for carrier in carriers), default=0))
        if dropped:
            warn("the spool is full: the oldest %d waiting bytes of the log are dropped" % dropped)

    # --- afterwards

    def _own_report(self, reason: str, message: str) -> "Report":
        from client_lib.launcher_protocol import report

        seq, offset = self._spool.end()
        ended = WorkerOutcome(0 if reason == reasons.CANCELLED else 1, reason, message, None)
        return report.as_json(self._plan, ended, [], None, time.time(), seq, offset)

    def _report_of_dead(self, kills: int) -> "Report":
        status = self._launcher.status or 0
        if os.getpid() == 1:
            with suppress(ProcessLookupError):
                # every other process of the pod: the dead launcher has left them
                os.kill(-1, signal.SIGKILL)
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        how = "ended" if signal_number is None else "was killed by signal %d" % signal_number
        folder = self._files.directory.path
        said = last_line(self._files.directory.output)
        reason = reasons.LAUNCHER_LOST
        launcher = "the launcher of worker %d" % self._pod.worker
        message = "%s %s without a report" % (launcher, how)
        exit_code = None if signal_number is None else -signal_number
        if durable.ended_program(folder, exit_code, said):
            reason = reasons.STORAGE_FULL
            message = "%s had no room on the disk of %s" % (launcher, folder)
        elif signal_number == signal.SIGKILL and out_of_memory_kills() > kills:
            reason = reasons.OUT_OF_MEMORY
            said = "its memory ran out"
        return self._own_report(reason, message + (": " + said if said else ""))

    def _deliver(self, report: "Report") -> int:
        """Send everything to the server, the report last; then wait until the
        server lets the worker exit.
        """
        self._ended_at = time.monotonic()
        self._write_termination_message(report)
        # a file for each rank, named by its number
        from client_lib.worker.function_runner import RESULTS

        folder = os.path.join(self._files.directory.path, RESULTS)
        names = sorted(filter(str.isdigit, os.listdir(folder))) if os.path.isdir(folder) else []
        results = [os.path.join(folder, name) for name in names]
        self._may_leave = not results and not self._ends_others(report)
        self._carry_the_rest()
        if self._channel.deliver(report, results, self._given_up):
            self._told = ""  # an earlier instruction does not answer whether the worker may exit
            self._channel.send_state("ended")
            while not (self._given_up() or self._terminated or self._told == control.EXIT):
                self._look_after()
                self._note(self._next_event())
        if report["reason"] == reasons.CANCELLED:
            return STOPPED
        # 0 for a completed worker, and for no other: the operator takes the master's 0 for the
        # success of the job
        return (
            0 if report["reason"] == reasons.COMPLETED else min(int(report["exit_code"]) or 1, 255)
        )

    def _carry_the_rest(self) -> None:
        to_server = self._to_server
        to_stdout = self._to_stdout
        if to_stdout is None:
            return
        to_stdout.finish()
        if to_server is not None:
            to_server.finish()
            while to_server.is_alive() and not to_server.fails and not self._given_up():
                to_server.join(_POLL_S)
                self._look_after()
        until = time.monotonic() + (self._pod.stay_s if to_server is None else _PRINT_S)
        while to_stdout.is_alive() and time.monotonic() < until:
            to_stdout.join(_POLL_S)
            self._look_after()

    def _given_up(self) -> bool:
        """The server has been silent for too long. Silence while the ranks ran does not count."""
        # a server that is back may take the log before it answers anything else
        took_log_at = self._to_server.answered_at if self._to_server else 0.0
        heard_at = max(self._channel.answered_at, took_log_at, self._ended_at)
        silent_s = time.monotonic() - heard_at
        leaves = self._may_leave and self._log_is_kept()
        return self._replaced or silent_s > (self._pod.leave_s if leaves else self._pod.stay_s)

    def _ends_others(self, report: "Report") -> bool:
        """The operator may end the other workers, and delete their logs, when this one leaves;
        or the kubelet starts this one again."""
        if self._plan.type == ELASTIC:
            return True
        is_failed = report["reason"] != reasons.COMPLETED
        return self._pod.n_workers > 1 and (self._pod.worker == 0 or is_failed)

    def _log_is_kept(self) -> bool:
        """The server has the log, or finds all of it in the log of the container."""
        if self._to_server is None or not self._to_server.is_alive():
            return True
        is_printed = self._to_stdout is None or not self._to_stdout.is_alive()
        _, end = self._spool.end()
        return is_printed and end <= _KEPT_BY_CLUSTER

    def _write_termination_message(self, report: "Report") -> None:
        from client_lib.launcher_protocol.termination import termination_message

        try:
            with open(self._pod.termination_log, "wb") as file:
                file.write(termination_message(report))
        except OSError as error:
            warn("the termination message could not be written: %s" % error)


class LauncherProcess:
    """The launcher: forked, as a new interpreter would load the same modules; controlled
    over sockets (launcher_protocol.control).
    """

    def __init__(self, directory: Directory, post: Callable[[AgentEvent], None]) -> None:
        """`post` gets the launcher's events, on another thread."""
        self._directory = directory
        self._post = post
        ours, self._launchers = socket.socketpair()
        self._connection = ControlConnection(ours)
        self._pid = 0
        self.status: Optional[int] = None
        """The status from os.waitpid; None: it is alive."""
        self.error: Optional[OSError] = None
        """The reason why it could not be forked, which can be reported after the claim."""

    def fork(self) -> None:
        """Fork the process that becomes the launcher. It loads the launcher's modules and waits for
        `start`; it ends if the agent ends before. To be called while this process has one thread.
        """
        try:
            self._pid = os.fork()
        except OSError as error:
            self.error = error
            return
        if self._pid == 0:
            self._connection.close()
            self._become_launcher()
        self._launchers.close()

    def start(self) -> None:
        self.instruct(b"\n")
        AgentThread("control", self._listen).start()

    def _become_launcher(self) -> NoReturn:
        """Do what the program of `programs.launcher_command` does, once the first byte arrives."""
        code = 1
        try:
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(signum, signal.SIG_DFL)
            os.setsid()  # a signal to the agent's group is the agent's to pass on
            os.chdir(self._directory.path)
            with open(os.devnull, "rb") as nothing, open(self._directory.output, "ab") as output:
                for fd, file in enumerate((nothing, output, output)):
                    os.dup2(file.fileno(), fd)
            passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            os.environ.clear()
            os.environ.update(passed_on)
            from client_lib.worker.launcher import run_worker  # here: the agent goes on meanwhile

            code = (
                run_worker(self._directory.path, agent=self._launchers)
                if self._launchers.recv(1)
                else 0
            )
        except BaseException:  # noqa: BLE001  # the agent's callers must not continue in this process
            import traceback  # here: takes milliseconds

            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stderr.flush()  # Python 3.8 buffers it, and os._exit flushes nothing
            os._exit(code)

    def instruct(self, line: bytes) -> None:
        with suppress(OSError):  # it is dead or dying: the agent will reap it
            self._connection.send(line)

    def kill(self) -> None:
        if self._pid and self.status is None:
            os.kill(self._pid, signal.SIGKILL)

    def reaped(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self.status = status

    def _listen(self) -> None:
        with suppress(OSError):  # as at end of file
            for message in iter(self._connection.receive, None):
                self._post(message)
