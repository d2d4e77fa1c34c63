"""The launcher's end of an installation: started as a process of its own, heard to its end. Standard library only,
Python >= 3.8.

It is forked, not started anew: the launcher may be a zipapp, and its interpreter without the `site` module.
"""

import os
import signal
from typing import Callable, Dict, List, NoReturn, Optional

from client_lib.worker.directory import Directory, read_json
from client_lib.worker.environment import Process
from client_lib.worker.outcome import START_FAILED
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.prepare import Refused
from client_lib.worker.requirements import install
from client_lib.worker.requirements.environment import Environment
from client_lib.worker.spawn import start
from client_lib.worker.system import System

_TRIES = 3  # an environment may be removed between its making and its use, by somebody who needs room


class Installation:
    """Of one worker. The caller reaps children: it asks `ended` at each SIGCHLD."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        listen: Callable[[int], None],
    ) -> None:
        """`listen` reads a descriptor to its end, into the log."""
        self._plan, self._directory = plan, directory
        self._system, self._listen = system, listen
        self._pid: Optional[int] = None
        self._tries = 0
        self._in_use: Optional[int] = None  # open for this worker's life

    def start(self) -> None:
        """Raises Refused: it can't even begin."""
        self._tries += 1
        here = self._directory.path
        process = Process(-1, -1, ["install"], install.marked(self._plan.environment, here), here)
        try:
            started = start(process, self._system.before_exec, self._become)
        except OSError as error:
            raise Refused(START_FAILED, "packages can't be installed: %s" % error) from error
        self._pid = started.pid
        self._listen(started.stdout)
        self._listen(started.stderr)

    def ended(self) -> Optional[WorkerPlan]:
        """The plan with the environment, once that is there; None: it goes on.

        Raises Refused: why there is none.
        """
        if self._pid is None or os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            return None
        self._system.rank_ended(self._pid)
        self._pid = None
        result = read_json(self._directory.environment) or {"failed": "its process died"}
        if "failed" in result:
            shown = ", ".join(self._plan.requirements)
            raise Refused(START_FAILED, "requirements=[%s] can't be installed: %s" % (shown, result["failed"]))
        self._in_use = Environment(*os.path.split(result["folder"])).use()
        if self._in_use is None:
            if self._tries < _TRIES:
                self.start()
                return None
            raise Refused(START_FAILED, "the environment with the packages was removed again and again")
        return self._with(result)

    def kill(self) -> None:
        if self._pid is not None:
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _with(self, result: Dict[str, str]) -> WorkerPlan:
        plan = self._plan
        environment = {**plan.environment, **install.activated(result["prefix"], plan.environment)}
        return plan._replace(python=result["python"] if plan.python else None, environment=environment)

    def _found(self, line: str) -> str:
        """`./wheels/one.whl` is in the snapshot."""
        return os.path.join(self._directory.work, line[2:]) if line.startswith("./") else line

    def _become(self, argv: List[str], environment: Dict[str, str]) -> NoReturn:
        """In the new process: nothing of the launcher's may stay open, its lock last of all."""
        del argv
        os.dup2(1, 2)
        os.closerange(3, 65536)
        plan = self._plan
        assert plan.environments_dir is not None
        for signum in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_DFL)
        os._exit(
            install.main(
                self._directory.environment,
                folder=plan.environments_dir,
                limit_bytes=plan.environments_limit_bytes,
                python=plan.requirements_python or plan.python or "python3",
                requirements=[self._found(line) for line in plan.requirements],
                variables=environment,
            )
        )
