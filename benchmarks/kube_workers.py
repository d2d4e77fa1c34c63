"""The workers of `kube_many.py`, a process of its own: what 4000 agents would do in as many real
pods, and those who follow every tenth job.

    python kube_workers.py < OPTIONS.json

KWOK's pods run nothing. For each that it calls Running this says to the server what an agent says
(its place is taken, ready, started, a line of log, the report, ended), waits for the same orders in
between, and then ends the pod as a kubelet would. Without a server: the pods of a job end when all
have run. SIGUSR1: workers that hold may go on; end of stdin: print what was seen, as JSON, and end.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from client_lib.launcher_protocol.outcome import Ended, WorkerOutcome
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.reasons import COMPLETED
from client_lib.launcher_protocol.report import Report, as_json, time_text
from client_lib.launcher_protocol.termination import termination_message
from client_lib.spec import paths
from server_stub.files.room import Spare
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.worker_gateway.attempt import WorkerRegistry

METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
KINDS = {each.name: each for each in (PYTORCHJOB, TRAINJOB)}
WAIT_S = 30.0
REQUESTS_AT_ONCE = 16  # of the kubelets, to the API server


@dataclass
class Seen:
    """What is printed at the end; times are those of this machine's clock."""

    placed_at: dict[str, float] = field(default_factory=dict)
    """When a job's last pod was seen to have a node, by the job's name."""
    reported_at: dict[str, float] = field(default_factory=dict)
    """When the last report of a job was sent to the server."""
    told_at: dict[str, dict[str, float]] = field(default_factory=dict)
    """When the server told a follower of a job that it starts (or is further),
    and that it has succeeded.
    """
    ended: int = 0
    """Pods."""
    problems: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


class Workers:
    def __init__(
        self, options: dict[str, Any], api: aiohttp.ClientSession, server: aiohttp.ClientSession
    ) -> None:
        self._options, self._api, self._server = options, api, server
        self._kind, self._job_label = KINDS[options["kind"]], options["job_label"]
        self._pods = f"{options['api']}/api/v1/namespaces/{options['namespace']}/pods"
        # the other arguments are for attempts that a registry opens
        key_file = Path(options["key_file"])
        self._registry = WorkerRegistry(
            key_file, lambda *_: key_file.parent, Spare(key_file.with_suffix(".spare"))
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, list[str]] = {}
        self._known: set[str] = set()
        self._kubelets = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self.seen = Seen()
        self.hold = asyncio.Event()
        if not options["hold"]:
            self.hold.set()

    async def watch(self, selector: str, begun: Any) -> None:
        """`begun` gets the metadata of each pod that the field selector begins to match."""
        version = ""
        while True:
            query = {
                "watch": "true",
                "fieldSelector": selector,
                "labelSelector": self._job_label,
                "timeoutSeconds": "600",
            }
            if version:
                query |= {"resourceVersion": version, "allowWatchBookmarks": "true"}
            async with self._api.get(self._pods, params=query, headers=METADATA) as answer:
                buffer = b""
                async for chunk in answer.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        event = json.loads(line)
                        meta = event["object"].get("metadata", {})
                        version = meta.get("resourceVersion", version)
                        if event["type"] == "ADDED" and meta["uid"] + selector not in self._known:
                            self._known.add(meta["uid"] + selector)
                            begun(meta)

    def placed(self, meta: dict[str, Any]) -> None:
        name = meta["labels"][self._job_label]
        if (
            name not in self.seen.placed_at
            and self._options["server"]
            and name.rpartition("-")[2].endswith("0")
        ):
            self._begin(name, self._follow(name))
        self.seen.placed_at[name] = time.time()

    def runs(self, meta: dict[str, Any]) -> None:
        work = self._work if self._options["server"] else self._work_alone
        self._begin(meta["name"], work(meta))

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._whole(name, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _whole(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (aiohttp.ClientError, RuntimeError, OSError) as error:
            self.seen.problems.append(f"{name}: {error!r}"[:300])

    async def _follow(self, name: str) -> None:
        """As `wait` does it: asks again as soon as it is told."""
        told = self.seen.told_at.setdefault(name, {})
        headers = {"Authorization": f"Bearer {self._options['token']}"}
        info: dict[str, Any] = {"version": 0, "state": "PENDING"}
        while info["state"] in ("PENDING", "RUNNING"):
            query = {"after_version": str(info["version"]), "wait": f"{WAIT_S:g}"}
            async with self._server.get(
                self._options["server"] + paths.job(name), params=query, headers=headers
            ) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"{answer.status}: {(await answer.read())[:200]!r}")
                info = await answer.json()
            if info["state"] != "PENDING" or info["reason"] == "Starting":
                told.setdefault("STARTING", time.time())
            if info["state"] == "SUCCEEDED":
                told["SUCCEEDED"] = time.time()

    # --- one pod

    async def _work_alone(self, meta: dict[str, Any]) -> None:
        job = meta["labels"][self._job_label]
        there = self._running.setdefault(job, [])
        there.append(meta["name"])
        if len(there) < self._options["workers"]:
            return
        await self.hold.wait()
        await asyncio.sleep(self._options["run_s"])
        *others, master = sorted(there, key=lambda name: "-master-" in name)
        await asyncio.gather(*(self._end_pod(name, b"") for name in others))
        await self._end_pod(master, b"")

    async def _work(self, meta: dict[str, Any]) -> None:
        labels = meta["labels"]
        key, worker = names.attempt_of(labels), self._kind.worker_of(labels)
        assert key is not None
        assert worker is not None
        job = labels[names.JOB_NAME]
        base = self._options["server"] + paths.worker(job, key.attempt, worker)
        headers = {
            "Authorization": f"Bearer {self._registry.token(*key)}",
            paths.POD_UID: meta["uid"],
            paths.POD_NAME: meta["name"],
            paths.WORKER_PROTOCOL: "1",
        }
        await self._say(base, headers, "preparing")
        await self._say(base, headers, "ready")
        await self._until(base, headers, ["ready"], "wait", "go")
        began = time.time()
        await self._say(base, headers, "started")
        state = ["started"]
        leaves = asyncio.create_task(self._until(base, headers, state, "go", "exit"))
        await self.hold.wait()
        await asyncio.sleep(self._options["run_s"])
        record = f"0 {time_text(began).replace('+00:00', 'Z')} {worker} stdout it ran\n".encode()
        await self._put(f"{base}/log?offset=0", headers, record)
        report = _report(worker, key.attempt, began, len(record))
        self.seen.reported_at[job] = time.time()
        await self._put(f"{base}/report", headers, json.dumps(report).encode())
        state[0] = "ended"
        await self._say(base, headers, "ended")
        await leaves
        await self._end_pod(meta["name"], termination_message(report))

    async def _until(
        self, base: str, headers: dict[str, str], state: list[str], knows: str, wanted: str
    ) -> None:
        """Beside what is said: `state` holds the last of it."""
        while knows != wanted:
            knows = await self._say(base, headers, state[0], knows, WAIT_S)

    async def _say(
        self, base: str, headers: dict[str, str], state: str, knows: str = "", wait_s: float = 0
    ) -> str:
        body = json.dumps({"state": state, "signs_of_life": 0}).encode()
        answer = await self._put(f"{base}/state?knows={knows}&wait={wait_s:g}", headers, body)
        return str(answer["do"])

    async def _put(self, url: str, headers: dict[str, str], body: bytes) -> Any:
        while True:
            try:
                async with self._server.put(url, headers=headers, data=body) as answer:
                    status, text = answer.status, await answer.read()
            except aiohttp.ClientConnectionError:  # a kept connection that the server closes
                status, text = 503, b""
            if status == 401 and "/state?" in url:  # the attempt was closed
                return {"do": "exit"}
            if status < 300:
                return json.loads(text)
            if status != 503:
                raise RuntimeError(f"{status}: {text[:200]!r}")
            await asyncio.sleep(0.1)

    async def _end_pod(self, name: str, message: bytes) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ended = {
            "exitCode": 0,
            "reason": "Completed",
            "message": message.decode(),
            "startedAt": now,
            "finishedAt": now,
        }
        container = {
            "name": self._kind.container,
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        status = {
            "phase": "Succeeded",
            "containerStatuses": [container | {"state": {"terminated": ended}}],
        }
        headers = {"Content-Type": "application/merge-patch+json"}
        async with (
            self._kubelets,
            self._api.patch(
                f"{self._pods}/{name}/status", headers=headers, json={"status": status}
            ) as answer,
        ):
            if answer.status >= 300:
                raise RuntimeError(f"{answer.status}: {(await answer.read())[:200]!r}")
        self.seen.ended += 1


def _report(worker: int, attempt: int, began: float, length: int) -> Report:
    now = time.time()
    rank = Ended(worker, 0, None, began, now, now, False, False, None, None, [])
    plan = WorkerPlan.__new__(WorkerPlan, **_plan(worker, attempt))
    return as_json(plan, WorkerOutcome(0, COMPLETED, "", None), [rank], began, now, 1, length)


def _plan(worker: int, attempt: int) -> dict[str, Any]:
    """Of which a report reads two fields."""
    return {name: None for name in WorkerPlan._fields} | {"worker": worker, "attempt": attempt}


def _authenticated(kubeconfig: str) -> tuple[str, ssl.SSLContext]:
    import base64

    document = json.loads(Path(kubeconfig).read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    tls = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(
            base64.b64decode(user["client-certificate-data"])
            + base64.b64decode(user["client-key-data"])
        )
        file.flush()
        tls.load_cert_chain(file.name)
    return cluster["server"], tls


async def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    options = json.loads(sys.stdin.readline())
    options["api"], tls = _authenticated(options["kubeconfig"])
    forever = aiohttp.ClientTimeout(total=None)
    to_api, to_server = aiohttp.TCPConnector(ssl=tls, limit=0), aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=to_api, timeout=forever) as api,
        aiohttp.ClientSession(connector=to_server, timeout=forever) as server,
    ):
        workers = Workers(options, api, server)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, workers.hold.set)
        watches = [
            asyncio.create_task(workers.watch("spec.nodeName!=", workers.placed)),
            asyncio.create_task(workers.watch("status.phase=Running", workers.runs)),
        ]
        print("ready", flush=True)
        ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([ended, *watches], return_when=asyncio.FIRST_COMPLETED)
        for watch in watches:
            if watch.done():
                watch.result()
            watch.cancel()
        used = resource.getrusage(resource.RUSAGE_SELF)
        workers.seen.cpu_s = used.ru_utime + used.ru_stime
        print(json.dumps(workers.seen.__dict__), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
