"""Groups through the SDK on a real local server."""

from pathlib import Path
from typing import Any

import pytest

from client_lib import (
    Client,
    Job,
    JobCancelled,
    JobFailed,
    NotFound,
    WaitTimeout,
    get_group,
    list_jobs,
)
from client_lib.groups import JobList

TRAIN = """\
import sys, time
lr = float(sys.argv[sys.argv.index("--lr") + 1])
for step in range(3): print(f"step {step} loss={lr / (step + 1)}")
if lr > 1: sys.exit(7)
"""


@pytest.mark.parametrize(
    ("part", "fetched"),
    [
        (slice(2, 4), 4),
        (slice(6, 2), 2),
        (slice(-3, None), 9),
        (slice(5), 5),
        (slice(None, 2, -1), 9),
        (slice(5, None, -2), 9),
        (slice(1, 7, 3), 7),
    ],
)
def test_a_part_of_a_list_is_that_of_a_sequence_and_fetches_no_more(
    part: slice, fetched: int
) -> None:
    numbers: Any = iter(range(9))
    jobs: Any = JobList(lambda info: info, lambda: numbers)  # type: ignore[arg-type,return-value]
    assert jobs[part] == list(range(9))[part]
    assert list(numbers) == list(range(fetched, 9))


@pytest.fixture
def described(client: Client, folder: Path) -> Job:
    (folder / "train.py").write_text(TRAIN)
    return Job(script="train.py", type="nogpu", client=client)


def test_each_submits_a_job_for_every_value_and_returns_them(client: Client, folder: Path) -> None:
    (folder / "train.py").write_text("import sys; print(sys.argv[1:])\n")
    described = Job(script="train.py", flags={"fast": "{seed}"}, type="nogpu")
    jobs = described.each("each-seed", {"seed": [1, 2]})
    assert [list(job.log_lines()) for job in jobs] == [["['--fast=1']"], ["['--fast=2']"]]
    listed = described.each("each-listed", [{"seed": 1}, {"seed": 2}])
    assert [job.spec.args for job in listed] == [job.spec.args for job in jobs]
    again = [described.each(name, {"seed": [1, 2]}) for name in ("each-seed", "each-other")]
    assert [[job.name for job in each] for each in again] == [
        ["each-seed-0", "each-seed-1"],
        ["each-other-0", "each-other-1"],
    ]
    assert [job.name for job in list_jobs(group="each-seed")] == ["each-seed-1", "each-seed-0"]


def test_a_group_is_waited_for_measured_and_shown_as_one(described: Job) -> None:
    group = described.each("sdk-scan", {"lr": [0.4, 0.1, 0.2]})
    assert group.wait(timeout=60).counts == {"SUCCEEDED": 3}
    assert repr(group) == "Group('sdk-scan', SUCCEEDED when last asked: 3/3 SUCCEEDED)"
    same = get_group("sdk-scan")
    assert [job.name for job in same] == ["sdk-scan-0", "sdk-scan-1", "sdk-scan-2"]
    assert same[-1].state == same.state == "SUCCEEDED"
    assert same.best("loss").name == "sdk-scan-1"
    assert same.best("loss", largest=True).name == "sdk-scan-0"
    assert {name: found.curves[0].values[-1] for name, found in same.metrics().items()}[
        "sdk-scan-0"
    ] == 0.4 / 3
    assert same.compare()[1]["arguments"] == {"lr": "0.1"}
    assert same.compare()[1]["metrics"]["loss"]["best"] == 0.1 / 3
    assert "sdk-scan-2" in same._repr_html_()
    with pytest.raises(NotFound, match="no job of these has the metric 'acc'; they have loss"):
        same.best("acc")
    with pytest.raises(NotFound, match="no group named nowhere"):
        get_group("nowhere")


def test_the_wait_for_a_group_raises_the_end_of_the_first_that_failed(described: Job) -> None:
    with pytest.raises(JobFailed) as failed:
        described.each("sdk-fails", {"lr": [0.1, 2.0, 3.0]}, max_parallel=1).wait(timeout=60)
    assert failed.value.info.name == "sdk-fails-1"
    Path("train.py").write_text("import time; time.sleep(60)\n")
    asleep = described.each("sdk-sleeps", {"lr": [0.1]})
    with pytest.raises(WaitTimeout, match="sdk-sleeps-0"):
        asleep.wait(timeout=0.1)
    asleep.cancel()
    with pytest.raises(JobCancelled):
        asleep.wait(timeout=60)
