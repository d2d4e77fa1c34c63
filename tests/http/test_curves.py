"""Metrics and progress of jobs over HTTP: what is shown, and to which users."""

import math
from collections.abc import Callable
from threading import current_thread
from typing import Any

import pytest

from client_lib import Client
from client_lib.launcher_protocol.record import metric_lines
from client_lib.spec import paths
from client_lib.spec.metrics import PARTS
from client_lib.worker.preflight import WARNING
from server_stub.curves import goodput
from server_stub.curves.reader import FOLDER
from server_stub.files.job_dirs import log_dir
from tests.curves.test_lag import line
from tests.http.conftest import Api, Running
from tests.http.test_stacks import runs
from tests.logs.support import LogWriter

LOST = "loss was NaN from step 3"
METRICS = paths.job("train", "metrics")


def prints(server: Running, job_id: str) -> None:
    """The job prints three steps of 100 at its beginning."""
    log = LogWriter(log_dir(server.settings.data_dir / "jobs" / job_id, 1, 0))
    for n, loss in enumerate(("0.5", "0.25", "nan")):
        log.write(f"step {n + 1}/100 loss={loss} acc=50%", at=n)


@pytest.fixture
def running(server: Running, ann: Api) -> str:
    job_id = runs(server, ann)
    prints(server, job_id)
    return job_id


def test_a_job_and_lists_show_the_progress_of_a_running_job(
    running: str, server: Running, ann: Api
) -> None:
    (listed,) = ann("GET", paths.JOBS).json()["jobs"]
    job = ann("GET", paths.job("train")).json()
    waited = ann(
        "GET", paths.job("train"), params={"after_version": job["version"], "wait": 0}
    ).json()
    for progress in (listed["progress"], job["progress"], waited["progress"]):
        assert progress["done"] == 0.03
        assert list(progress["metrics"].items()) == [("loss", "NaN"), ("acc", 50)]
        assert progress["nan"] == LOST
    for shown in (listed, job, waited):
        assert shown["attention"] == [{"code": "loss", "sentence": LOST}]
    server.call(lambda: server.runtime.end(running))
    while job["state"] != "SUCCEEDED":
        job = ann("GET", paths.job("train"), params={"after_version": job["version"]}).json()
    left = ann("GET", paths.job("train")).json()["progress"]
    assert {name: value for name, value in left.items() if value} == {"nan": LOST}
    (listed,) = ann("GET", paths.JOBS).json()["jobs"]
    assert listed["progress"] is None
    assert listed["attention"] == [{"code": "loss", "sentence": LOST}]


def test_a_job_shows_its_slow_rank(running: str, server: Running, ann: Api) -> None:
    log = LogWriter(log_dir(server.settings.data_dir / "jobs" / running, 1, 0))
    for rank, late in enumerate((0.0, 0.0, 0.05)):
        log.write(
            line(rank, 1, 1, [1e9 + 0.1 * step + late for step in range(20)]),
            rank="-",
            stream="metrics",
        )
    log.write(f"{WARNING}worker 1 (node-1) is slow: it writes little", rank="-")
    expected = (
        "rank 2 is slow: it enters collectives 50 ms after the others in 19 of the last 19 steps"
    )
    warning = "worker 1 (node-1) is slow: it writes little"
    job = ann("GET", paths.job("train")).json()
    assert job["progress"]["slow"].startswith(f"{warning}; {expected}")
    (listed,) = ann("GET", paths.JOBS).json()["jobs"]
    for shown in (job, listed):
        told = [each["sentence"] for each in shown["attention"] if each["code"] == "slow"]
        assert [each[: len(expected)] for each in told] == [warning, expected]

    # a slow rank that no longer holds up anybody is a hint, and no attention
    server.call(lambda: server.runtime.end(running))
    while job["state"] != "SUCCEEDED":
        job = ann("GET", paths.job("train"), params={"after_version": job["version"]}).json()
    job = ann("GET", paths.job("train")).json()
    assert [each["code"] for each in job["attention"]] == ["loss"]
    assert expected in job["progress"]["slow"]


def test_what_the_time_of_a_job_was_used_for(
    running: str, server: Running, ann: Api, root: Api
) -> None:
    used = ann("GET", paths.job("train", "goodput")).json()
    assert used["wall_s"] == pytest.approx(sum(used[f"{name}_s"] for name in PARTS))
    assert root("GET", paths.job("train", "goodput"), params={"owner": "ann"}).status_code == 200
    with Client(server.url, token=server.tokens["ann"]) as client:
        assert "starting" in str(client.get_job("train").goodput())


def test_the_loop_does_not_split_the_time_of_a_job(
    running: str, ann: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, real = [], goodput.split

    def split(*arguments: Any) -> dict[str, float]:
        threads.append(current_thread().name)
        return real(*arguments)

    # the thread of the work shows in no answer
    monkeypatch.setattr(goodput, "split", split)
    assert ann("GET", paths.job("train", "goodput")).status_code == 200
    (thread,) = threads
    assert thread.startswith("curves")


def test_the_curves_of_a_job(running: str, server: Running, ann: Api, root: Api) -> None:
    answer = ann("GET", METRICS)
    assert answer.status_code == 200, answer.text
    acc, loss = answer.json()["curves"]
    assert (loss["name"], loss["rank"], loss["axis"], loss["points"]) == ("loss", 0, "step", 3)
    assert (loss["steps"], loss["values"]) == ([1, 2, 3], [0.5, 0.25, "NaN"])
    assert acc["values"] == [50, 50, 50]
    assert ann("GET", METRICS, params={"rank": 1}).json()["curves"] == []
    assert len(ann("GET", METRICS, params={"rank": "all"}).json()["curves"]) == 2
    assert ann("GET", METRICS, params={"rank": "workers"}).json()["curves"] == []
    for wrong in ({"rank": "some"}, {"points": 1}):
        assert ann("GET", METRICS, params=wrong).status_code == 422
    assert root("GET", METRICS, params={"owner": "ann"}).status_code == 200


def test_pages_of_one_job_share_answers_of_the_age_that_they_accept(
    running: str, server: Running, ann: Api, root: Api, ben: Api
) -> None:
    def points(user: Api, accepted: str = "no-cache") -> int:
        answer = user(
            "GET", METRICS, params={"owner": "ann"}, headers={"Cache-Control": accepted}
        ).json()
        return len(answer["curves"][0]["values"])

    assert points(ann) == 3
    LogWriter(log_dir(server.settings.data_dir / "jobs" / running, 1, 0)).write(
        "step 4/100 loss=1 acc=50%", at=4
    )
    assert (points(ann, "max-age=5"), points(root, "max-age=5")) == (3, 3)
    assert (
        ben(
            "GET", METRICS, params={"owner": "ann"}, headers={"Cache-Control": "max-age=5"}
        ).status_code
        == 404
    )
    assert points(ann, "max-age=0") == points(ann) == points(root, "max-age=5") == 4


def test_no_name_breaks_an_answer(server: Running, ann: Api) -> None:
    job_id = runs(server, ann)
    log = LogWriter(log_dir(server.settings.data_dir / "jobs" / job_id, 1, 0))
    log.write(
        metric_lines(0, 1, {"\ud800 \0 loss": 0.5})[0].decode().strip(), rank="-", stream="metrics"
    )
    (curve,) = ann("GET", METRICS).json()["curves"]
    assert curve["name"] == "? \0 loss"
    (listed,) = ann("GET", paths.JOBS).json()["jobs"]
    assert listed["progress"]["metrics"] == {"? \0 loss": 0.5}


def test_the_metrics_of_one_job_break_no_list(server: Running, ann: Api) -> None:
    job_dir = server.settings.data_dir / "jobs" / runs(server, ann)
    (job_dir / FOLDER).mkdir(parents=True)
    bar = '["", ["x", 3, false, [0, 1, 2], [0, 1, 2]]]'
    damaged = f'{{"version": 2, "offset": 0, "dropped": 0, "curves": [], "bars": [[{bar}], []]}}\n'
    (job_dir / FOLDER / "1-0").write_text(damaged)
    (listed,) = ann("GET", paths.JOBS).json()["jobs"]
    assert listed["progress"] is None
    assert ann("GET", paths.job("train")).json()["progress"] is None


def test_the_client_reads_them(running: str, server: Running) -> None:
    with Client(server.url, token=server.tokens["ann"]) as client:
        found = client.get_job("train").metrics()
        assert client.get_job("train").info().progress is not None
    assert found.keys() == ["acc", "loss"]
    assert math.isnan(found["loss"].values[-1])
    with pytest.raises(KeyError, match="there are: acc, loss"):
        found["los"]


def test_other_users_see_neither(start_server: Callable[..., Running]) -> None:
    server = start_server(share_jobs=True)
    prints(server, runs(server, server.as_user("ann")))
    ben = server.as_user("ben")
    assert ben("GET", paths.job("train", "goodput"), params={"owner": "ann"}).status_code == 403
    answer = ben("GET", METRICS, params={"owner": "ann"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert [
        job["progress"] for job in ben("GET", paths.JOBS, params={"owner": "*"}).json()["jobs"]
    ] == [None]
    assert ben("GET", paths.job("train"), params={"owner": "ann"}).json()["progress"] is None
    assert server.as_user("root")("GET", paths.job("train"), params={"owner": "ann"}).json()[
        "progress"
    ]


def test_a_job_may_forbid_them(ann: Api, server: Running) -> None:
    prints(server, runs(server, ann, observe=False))
    assert "observe=False" in ann("GET", METRICS).json()["message"]
    assert ann("GET", paths.job("train")).json()["progress"] is None
