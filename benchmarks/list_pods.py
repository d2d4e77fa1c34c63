"""Peak memory of a server that lists the pods of a namespace, beside the peak for one page.

    python benchmarks/list_pods.py [--pods 5000 20000]

An API server of this benchmark answers in pages, with pods of 4.8 KB as the server makes them.
Each list is made in a process of its own, which tells its VmHWM.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kubernetes import client

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import PAGE, Api, ObjectWatch
from server_stub.runtimes.kube.observe.inventory import WorkerPod, parse_pod
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, REPLICA_INDEX, REPLICA_TYPE

ROUNDS = 3
PATH = "/api/v1/namespaces/jobs/pods"


def pod(number: int) -> dict[str, Any]:
    job = f"job-{number // 4}"
    labels = names.labels(job, 1, job) | {REPLICA_TYPE: "worker", REPLICA_INDEX: str(number % 4)}
    container = {
        "name": "pytorch",
        "image": "registry.example.com/training:1",
        "command": ["python3"] * 6,
        "env": [{"name": f"VARIABLE_{index}", "value": "y" * 40} for index in range(40)],
        "resources": {"requests": {"cpu": "1"}},
    }
    status = {"ready": True, "restartCount": 0, "imageID": f"sha256:{'f' * 64}"}
    conditions = ("Ready", "Initialized", "ContainersReady", "PodScheduled")
    return {
        "metadata": {
            "name": f"{job}-worker-{number % 4}",
            "namespace": "jobs",
            "uid": f"uid-{number}",
            "labels": labels,
            "annotations": {f"annotation-{index}": "x" * 60 for index in range(5)},
            "ownerReferences": [{"kind": "PyTorchJob", "name": job, "uid": f"uid-of-{job}"}],
        },
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": f"v{index}", "configMap": {"name": "n" * 30}} for index in range(6)
            ],
            "nodeName": "node",
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "containerStatuses": [{"name": "pytorch", "state": {"running": {}}, **status}],
        },
    }


@contextmanager
def api_server(pods: int) -> Iterator[str]:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
            begin = int(asked.get("continue", ["0"])[0])
            end = min(pods, begin + int(asked["limit"][0]))
            metadata = {"resourceVersion": "1"}
            if end < pods:
                metadata["continue"] = str(end)
            page = {"metadata": metadata, "items": [pod(number) for number in range(begin, end)]}
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


async def list_once(url: str) -> None:
    """Print by how many MiB the list raised the peak of this process."""
    configuration = client.Configuration()
    configuration.host = url
    found = list[WorkerPod]()
    parse = partial(parse_pod, kinds=(PYTORCHJOB,))
    watch = ObjectWatch(Api(configuration), PATH, {}, parse, found.extend, print, print)
    before = resident("VmRSS")
    await asyncio.to_thread(watch._list)
    await asyncio.sleep(0)
    print(len(found), resident("VmHWM") - before)


def resident(field: str) -> float:
    """MiB of this process."""
    status = Path("/proc/self/status").read_text()
    (kib,) = re.findall(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    return int(kib) / 1024


def measured(pods: int) -> float:
    with api_server(pods) as url:
        rounds = []
        for _ in range(ROUNDS):
            command = [sys.executable, __file__, "--once", url]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            listed, mib = answer.split()
            assert int(listed) == pods
            rounds.append(float(mib))
    return median(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[5000, 20000])
    parser.add_argument("--once", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        asyncio.run(list_once(options.once))
        return
    floor = measured(PAGE)
    print(f"{PAGE:6} pods (one page)  {floor:6.1f} MiB")
    for pods in options.pods:
        mib = measured(pods)
        print(f"{pods:6} pods             {mib:6.1f} MiB  {mib / floor:4.1f} x one page")


if __name__ == "__main__":
    main()
