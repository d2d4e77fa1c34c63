"""The agent's life: claim the worker's place, fetch, run the launcher, deliver, leave. Its main thread decides alone.

A zipapp is compiled anew at each start, 5 to 20 ms a module: what is needed at the end only, or by few jobs, is
imported there. Standard library only, Python >= 3.8.
"""

import os
import queue
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, NamedTuple, Optional, Union

from client_lib.worker import control
from client_lib.worker.directory import ALREADY_RAN, read_json, write_json
from client_lib.worker.elastic import TYPE as ELASTIC
from client_lib.worker.outcome import CANCELLED, CODE_FETCH, COMPLETED, OUT_OF_MEMORY, START_FAILED, Outcome
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.pod.child import Child
from client_lib.worker.pod.fill import FUNCTION_RUNNER, Files, fill
from client_lib.worker.pod.link import Order, Replaced, ServerLink
from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.place import Place, Pod, read_plan, read_pod, read_token, results
from client_lib.worker.pod.printer import READER as PRINTER
from client_lib.worker.pod.printer import Printer
from client_lib.worker.pod.server import Refused, Server, Unreachable, outputs_url
from client_lib.worker.pod.shipper import READER as SHIPPER
from client_lib.worker.pod.shipper import Shipper
from client_lib.worker.pod.spool import Spool
from client_lib.worker.system import out_of_memory_kills

if TYPE_CHECKING:
    from client_lib.worker.pod.peers import Peers

LAUNCHER_LOST = "LauncherLost"  # a value of client_lib.spec.states.Reason
STOPPED = 143  # exit code of a worker that was stopped: as a shell says it of SIGTERM
_LOOK_S = 0.2  # between two looks at the size of the spool
_PRINT_S = 10.0  # what stdout has not taken so long after the end is with the server anyway
_DIGEST_TRIES = 3


class Stopped(Exception):
    """It was ordered to stop before anything ran."""


class NoCode(Exception):
    """The code can't be had."""


class Event(NamedTuple):
    """Something that the main thread deals with: one of these, or none where a child has ended."""

    launcher: Optional[str] = None
    order: Optional[Order] = None
    replaced: bool = False


def main(root: str) -> int:
    """The container's exit code."""
    place = Place(root)
    try:
        pod, plan, token = read_pod(place, os.environ), read_plan(place), read_token(place)
    except (OSError, ValueError, KeyError) as error:
        warn("this pod can't be begun: %r" % error)
        return 1
    return Agent(place, pod, plan, token).run()


def warn(text: str) -> None:
    sys.stderr.write("client-lib: %s\n" % text)
    sys.stderr.flush()


class Agent:
    """`run` gives back the container's exit code."""

    def __init__(self, place: Place, pod: Pod, plan: WorkerPlan, token: str) -> None:
        self._place, self._pod, self._token = place, pod, token
        self._plan = plan._replace(worker=pod.worker)
        self._events: "queue.SimpleQueue[Event]" = queue.SimpleQueue()
        self._terminated = False
        self._order: Optional[Order] = None
        self._replaced = False
        self._ended_at = 0.0
        self._child = Child(place.directory, lambda event: self._events.put(Event(launcher=event)))
        carriers = [PRINTER] if pod.server_url is None else [PRINTER, SHIPPER]
        self._spool = Spool(place.directory.log, pod.spool_bytes, carriers)
        self._printer = Printer(self._spool)
        self._shipper: Optional[Shipper] = None
        self._link = self._new_link()

    def _new_link(self) -> "Union[ServerLink, Peers]":
        def on_order(order: Order) -> None:
            self._events.put(Event(order=order))

        def on_replaced() -> None:
            self._events.put(Event(replaced=True))

        if self._pod.server_url is None:
            from client_lib.worker.pod.peers import Peers

            return Peers(self._pod, self._token, on_order, on_replaced, warn)
        return ServerLink(self._new_server, self._spool.newest, on_order, on_replaced, warn)

    def _new_server(self) -> Server:
        return Server(self._pod, self._token, self._place.authorities)

    def run(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._terminate)  # as process 1, a signal without a handler would be ignored
        signal.signal(signal.SIGCHLD, lambda *_: self._events.put(Event()))  # wakes the main thread
        kills = out_of_memory_kills()
        os.makedirs(self._place.directory.path, exist_ok=True)
        try:
            self._claim()
            if self._is_elastic:
                self._go_on()
            self._begin()
        except Replaced as replaced:
            warn("%s: nothing is started here" % replaced)
            self._leave_word(self._own_report(START_FAILED, str(replaced)))
            return self._leave_place()
        except Stopped:
            return self._deliver(self._own_report(CANCELLED, "stopped before its processes were started"))
        except NoCode as missing:
            return self._deliver(self._own_report(CODE_FETCH, str(missing)))
        except OSError as error:
            return self._deliver(self._own_report(START_FAILED, "the worker could not be prepared: %s" % error))
        self._follow()
        if self._replaced:
            return self._leave_place()
        return self._deliver(read_json(self._place.directory.report) or self._report_of_dead(kills))

    def _terminate(self, *_: object) -> None:
        self._terminated = True

    @property
    def _is_elastic(self) -> bool:
        return self._plan.type == ELASTIC

    def _leave_place(self) -> int:
        """Another pod has it. The container of an elastic job would be started again, and again: it stays."""
        while self._is_elastic and not self._terminated:
            time.sleep(_LOOK_S)
        return ALREADY_RAN

    # --- before anything runs

    def _claim(self) -> None:
        pauses = Pauses()
        said = None
        while True:
            why = self._link.claim()
            if why is None:
                break
            if why != said:
                warn("waits for the server: %s" % why)
                said = why
            self._check_stop()
            pauses.sleep()
        self._link.start()

    def _go_on(self) -> None:
        from client_lib.worker.pod.again import go_on

        offset, seq = go_on(self._place.directory, self._new_server(), self._check_stop, warn)
        self._plan = self._plan._replace(log_offset=offset, log_seq=seq)
        self._spool.begin(offset, seq)

    def _check_stop(self) -> None:
        """Raises Stopped, Replaced."""
        while not self._events.empty():
            self._note(self._events.get())
        if self._replaced:
            raise Replaced("this worker's place was taken by another pod")
        if self._terminated or (self._order is not None and self._order.do == "stop"):
            raise Stopped()

    def _note(self, event: Event) -> None:
        self._order = event.order or self._order
        self._replaced = self._replaced or event.replaced

    def _begin(self) -> None:
        """Raises NoCode, Stopped, Replaced, OSError."""
        place = self._place
        files = Files(
            snapshot=self._got("snapshot", self._pod.snapshot) if self._pod.snapshot else None,
            function=self._got("function", None) if self._pod.function else None,
            runner=self._runner() if self._pod.function else None,
            environments=place.environments,
            token=place.token,
            authorities=place.authorities,
        )
        self._plan = fill(self._plan, self._pod, files, outputs_url(self._pod))
        write_json(place.directory.plan, self._plan._asdict())
        self._check_stop()
        self._printer.start()
        if self._pod.server_url is not None:
            self._shipper = Shipper(self._new_server(), self._spool, warn)
            self._shipper.start()
        self._child.start()

    def _runner(self) -> str:
        from client_lib.worker.prepare import runner_file

        return runner_file(FUNCTION_RUNNER, self._place.directory)

    def _got(self, what: str, sha256: Optional[str]) -> str:
        """Where it lies. Raises NoCode, Stopped, Replaced."""
        mounted = self._place.mounted(what)
        if mounted is None:
            return self._fetched(what, sha256)
        if not _is_as_submitted(mounted, sha256):
            raise NoCode("the %s that is mounted has not the digest that was submitted" % what)
        return mounted

    def _fetched(self, what: str, sha256: Optional[str]) -> str:
        if self._pod.server_url is None:
            raise NoCode("the %s is not mounted, and there is no server to fetch it from" % what)
        server, target, pauses = self._new_server(), self._place.fetched(what), Pauses()
        tries = 0
        while tries < _DIGEST_TRIES:
            self._check_stop()
            try:
                server.fetch(what, target, self._check_stop)
                if _is_as_submitted(target, sha256):
                    return target
                tries += 1
            except Refused as refused:
                raise NoCode("the server does not give the %s: %s" % (what, refused)) from refused
            except Unreachable as error:
                warn("the %s waits for the server: %s" % (what, error))
                pauses.sleep()
        raise NoCode("the %s that comes has not the digest that was submitted" % what)

    # --- while it runs

    def _follow(self) -> None:
        """Return when the launcher is gone."""
        asked_to_stop = False
        while True:
            self._reap()
            if self._child.ended:
                return
            self._tidy()
            if self._terminated and not asked_to_stop:
                asked_to_stop = True
                self._child.order(control.stop(self._plan.grace_s))
            try:
                event = self._events.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            self._heed(event)

    def _heed(self, event: Event) -> None:
        self._note(event)
        if event.replaced:
            warn("this worker's place was taken by another pod")
            self._child.kill()
        elif event.launcher in (control.READY, control.STARTED):
            self._link.tell(event.launcher)
        elif event.order is not None and event.order.do == "go":
            self._child.order(control.go())
        elif event.order is not None and event.order.do == "stop":
            grace_s = event.order.grace_s
            self._child.order(control.stop(self._plan.grace_s if grace_s is None else grace_s))

    def _reap(self) -> None:
        """Every child that has ended: the launcher, and as process 1 the orphans of the pod."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._child.reaped(pid, status)

    def _tidy(self) -> None:
        dropped = self._spool.tidy()
        if dropped:
            warn("the spool is full: the oldest %d bytes of the log that wait are dropped" % dropped)

    # --- afterwards

    def _own_report(self, reason: str, message: str) -> Dict[str, Any]:
        from client_lib.worker import report

        seq, offset = self._spool.end()
        code = 0 if reason == CANCELLED else 1
        return report.as_json(self._plan, Outcome(code, reason, message, None), [], None, time.time(), seq, offset)

    def _report_of_dead(self, kills: int) -> Dict[str, Any]:
        """The launcher has left none."""
        status = self._child.status or 0
        if os.getpid() == 1:
            _kill_all_others()
        how = "was killed by signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else "ended"
        said = self._child.last_words()
        message = "the launcher of worker %d %s without a report" % (self._pod.worker, how)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and out_of_memory_kills() > kills:
            return self._own_report(OUT_OF_MEMORY, message + ": its memory ran out")
        return self._own_report(LAUNCHER_LOST, message + (": " + said if said else ""))

    def _deliver(self, ended: Dict[str, Any]) -> int:
        """Everything to the server, in an order that makes the report the last word; then wait to be let go."""
        self._ended_at = time.monotonic()
        self._leave_word(ended)
        self._carry_the_rest()
        if self._link.deliver(ended, results(self._place.directory), self._given_up):
            self._order = None  # what was ordered until now was not whether it may leave
            self._link.tell("ended")
            self._wait_to_leave()
        return exit_code(ended)

    def _carry_the_rest(self) -> None:
        shipper = self._shipper
        for carrier in (self._printer, shipper):
            if carrier is not None and carrier.is_alive():
                carrier.finish()
        while shipper is not None and shipper.is_alive() and not self._given_up() and shipper.refused is None:
            shipper.join(_LOOK_S)
            self._reap()
            self._tidy()
        limit_s = self._pod.stay_s if self._pod.server_url is None else _PRINT_S
        until = time.monotonic() + limit_s
        while self._printer.is_alive() and time.monotonic() < until:
            self._printer.join(_LOOK_S)
            self._reap()

    def _wait_to_leave(self) -> None:
        while not self._given_up() and not (self._order is not None and self._order.do == "exit"):
            if self._terminated:
                return
            self._reap()
            try:
                self._note(self._events.get(timeout=_LOOK_S))
            except queue.Empty:
                continue

    def _given_up(self) -> bool:
        """Nobody has answered since the end, or for so long: what happened while the ranks ran does not count."""
        silent_s = min(self._link.silent_s, time.monotonic() - self._ended_at)
        return self._replaced or silent_s > self._pod.stay_s

    def _leave_word(self, ended: Dict[str, Any]) -> None:
        from client_lib.worker.pod.digest import digest

        try:
            with open(self._pod.termination_log, "wb") as file:
                file.write(digest(ended))
        except OSError as error:
            warn("no termination message could be left: %s" % error)


def exit_code(ended: Dict[str, Any]) -> int:
    """0 for a worker that completed, and never for another: the operator takes the master's 0 for the job's success."""
    if ended["reason"] == COMPLETED:
        return 0
    if ended["reason"] == CANCELLED:
        return STOPPED
    return min(int(ended["exit_code"]) or 1, 255)


def _is_as_submitted(path: str, sha256: Optional[str]) -> bool:
    """`sha256` None: it is not known, and whatever came is taken."""
    if sha256 is None:
        return True
    import hashlib

    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(1024 * 1024)
            if not block:
                return found.hexdigest() == sha256
            found.update(block)


def _kill_all_others() -> None:
    """In a pod: what the dead launcher has left runs here and nowhere else."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
