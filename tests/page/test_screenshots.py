"""The main views with the data of a day's work: their screenshots, of which the documentation has
copies.

`make screenshots` writes them to docs/images.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec import paths
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure
from tests.http.conftest import Running
from tests.http.test_groups import submit as submit_group
from tests.kit.waiting import until
from tests.page.conftest import login, new_job
from tests.page.support import log_of, violations
from tests.page.test_code import archive, of_snapshot

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chromium")]
MOST = 80_000  # bytes of an image
DOCUMENTED = ("jobs", "job", "failure", "workers")
SOURCE = b"""import torch
from data import batches
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=%s)
for step, (batch, labels) in enumerate(batches(), start=1):
    loss = torch.nn.functional.cross_entropy(model(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}/400 loss={loss:.4f}")
"""
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 41, in <module>',
    "    main()",
    '  File "train.py", line 27, in main',
    "    loss = criterion(model(batch), labels)",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x784 and 512x10)",
]


def trains(server: Running, job_id: str, steps: int, slow: float = 1.0) -> None:
    """The lines of two ranks, and the use of their worker."""
    log = log_of(server, job_id)
    for n in range(steps):
        loss = 0.25 + 2.0 * math.exp(-n / (60 * slow)) + 0.05 * math.sin(n * 1.7)
        line = (
            f"step {n + 1}/400 loss={loss:.4f} acc={1 - loss / 2.6:.4f} "
            f"lr={0.1 * (1 - n / 400):.4f}"
        )
        log.append([log.record(line, at=2 * n, rank=each) for each in (0, 1)])
        if n % 5 == 0:
            used = {"worker/cpu_cores": 1.9 + 0.1 * math.sin(n), "worker/memory_gib": 3.1 + n / 400}
            log.write(json.dumps({"used": used}), at=2 * n, rank="-", stream="metrics")


@pytest.fixture
def day(server: Running) -> Running:
    """Jobs of each kind."""
    ann = server.as_user("ann")
    labels = {"team": "vision"}
    made = {}
    for name, lr in (
        ("resnet-yesterday", "0.05"),
        ("resnet-x7k2m", "0.1"),
        ("tune-3", "0.3"),
        ("eval-base", "0.1"),
    ):
        code = archive(train_py=SOURCE % lr.encode(), data_py=b"import torch\n")
        of_snapshot(
            server,
            name,
            code,
            root="/home/ann/digits",
            args=["--lr", lr],
            n_workers=1,
            processes_per_worker=2,
            labels=labels,
        )
        made[name] = ann("GET", paths.job(name)).json()["id"]
    for name in ("resnet-yesterday", "resnet-x7k2m", "tune-3"):
        server.call(lambda name=name: server.runtime.runs(made[name]))
    trains(server, made["resnet-yesterday"], 400, 2.0)
    trains(server, made["resnet-x7k2m"], 180)
    failed = log_of(server, made["tune-3"])
    for line in TRACEBACK:
        failed.write(line, stream="stderr")
    server.call(lambda: server.runtime.end(made["resnet-yesterday"]))
    broken = Failure(worker=0, rank=0, exit_code=1, exception=TRACEBACK[-1], last_lines=TRACEBACK)
    server.call(
        lambda: server.runtime.end(
            made["tune-3"], Reason.EXIT_CODE, "rank 0 ended with exit code 1", broken
        )
    )
    assert submit_group(ann, "lr-scan", 4, max_parallel=1).status_code == 201
    new_job(
        server, "ann", name="pretrain", script="python pretrain.py", type="binary", labels=labels
    )
    for name, state in (
        ("resnet-yesterday", "SUCCEEDED"),
        ("tune-3", "FAILED"),
        ("resnet-x7k2m", "RUNNING"),
    ):
        until(lambda name=name, state=state: ann("GET", paths.job(name)).json()["state"] == state)
    return server


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_main_views_look_as_in_the_documentation(
    page: Any, day: Running, tmp_path: Path, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 1000, "height": 620})
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    problems: list[str] = []

    def shot(name: str) -> None:
        problems.extend(f"{name}: {each}" for each in violations(page))
        path = (
            folder if scheme == "light" and name in DOCUMENTED else tmp_path
        ) / f"page-{name}.png"
        page.screenshot(path=path)
        assert path.stat().st_size <= MOST, path

    login(page, day, "ann")
    page.wait_for_selector("tr[data-name=resnet-x7k2m] svg.spark")
    page.wait_for_selector("tr[data-name=resnet-yesterday] svg.spark")
    shot("jobs")
    page.goto(f"{day.url}/jobs/resnet-x7k2m?with=resnet-yesterday")
    page.locator(".chart").nth(2).wait_for()
    page.locator(".row", has_text="step 180").first.wait_for()
    page.locator("#curves").evaluate("section => scrollTo(0, section.offsetTop - 10)")
    shot("job")
    page.locator("#workers").scroll_into_view_if_needed()
    page.locator("#usage .chart").nth(1).wait_for()
    page.locator("#workers").evaluate("section => scrollTo(0, section.offsetTop - 10)")
    assert page.locator("#usage figcaption b").all_inner_texts() == [
        "worker/cpu_cores",
        "worker/memory_gib",
    ]
    shot("workers")
    page.goto(f"{day.url}/jobs/tune-3")
    page.wait_for_selector(".failure .exception")
    shot("failure")
    page.goto(f"{day.url}/jobs/tune-3/difference?with=resnet-yesterday")
    shot("difference")
    page.goto(f"{day.url}/jobs/tune-3/code")
    shot("code")
    page.goto(f"{day.url}/server")
    shot("server")
    page.set_viewport_size({"width": 400, "height": 800})
    for path in (
        "server",
        "jobs/tune-3/code",
        "jobs/tune-3/difference?with=resnet-yesterday",
        "jobs/resnet-x7k2m",
    ):
        page.goto(f"{day.url}/{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        page.screenshot(path=tmp_path / f"narrow-{path.split('/')[-1].split('?')[0]}.png")
    assert problems == []
