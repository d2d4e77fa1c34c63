"""The metrics of a job, from each source that needs no other package, on both runtimes."""

from datetime import datetime, timezone

import pytest

from client_lib.cli.commands.status import job_lines
from client_lib.spec.states import State
from tests.contract.places import ClusterPlace, Place, ended, prints

pytestmark = pytest.mark.process

SCRIPT = """
try:
    import client_lib
except ModuleNotFoundError:  # the image of the pods lacks it
    client_lib = None
for step in range(5):
    print(f"step {step}/5 loss={1 / (step + 1):.4f} it<{step}> odd~{step * 2}~", flush=True)
    if client_lib:
        client_lib.log({"exact": step / 3}, step=10 * step)
"""


@pytest.mark.smoke
def test_lines_an_expression_and_logged_values_become_curves(place: Place) -> None:
    job = place.run(SCRIPT, n_workers=2, metrics="it<(?P<step>[0-9]+)> odd~(?P<odd>[0-9]+)~")
    assert job.info().state is State.SUCCEEDED, job.info().message
    metrics = job.metrics()
    assert metrics["odd"].values == [0, 2, 4, 6, 8]
    assert metrics["odd"].steps == [0, 1, 2, 3, 4]
    assert metrics["loss"].values == [1, 0.5, 0.3333, 0.25, 0.2]
    if place.name == "local":
        assert metrics["exact"].values == [step / 3 for step in range(5)]
        assert metrics["exact"].steps == [0, 10, 20, 30, 40]
    of_all = place.client.job_metrics(job.info().name, rank="all").curves
    assert sorted((curve.name, curve.rank) for curve in of_all if curve.name == "odd") == [
        ("odd", 0),
        ("odd", 1),
    ]


def test_an_expression_without_an_end_stops_neither_log_nor_job(place: Place) -> None:
    job = place.run("print('a' * 200)\nprint('the end')", metrics="(?P<n>[0-9]+)|(a+)+b")
    assert job.info().state is State.SUCCEEDED, job.info().message
    lines = [entry.text for entry in job.log_entries(follow=False)]
    assert "the end" in lines
    assert "the expression of `metrics` takes too long and was switched off" in lines


POSTS = """
import json, os, time, urllib.error, urllib.request

def post(body, token=open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()):
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code

for step in range(1, 4):
    metrics = {"loss": 1 / step, "note": "a text"}
    metrics.update(current_step=step, total_steps=10, train_runtime=1)
    named = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"progressPercentage": 10 * step, "estimatedRemainingSeconds": 1000, "metrics": named}
    assert post(json.dumps({"trainerStatus": status}).encode()) == 200
assert post(json.dumps({"trainerStatus": {"progressPercentage": 31}}).encode(), "other") == 401
wrong = [b"{", b"[]", b'{"trainerStatus": {"progressPercentage": []}}']
assert [post(body) for body in wrong] == [422] * 3
print("posted", flush=True)
time.sleep(600)
"""


def test_what_a_library_posts_by_kubeflows_protocol_is_progress_and_metrics(place: Place) -> None:
    job = place.job(POSTS, grace_s=1)
    job.submit()
    prints(job, "posted")
    progress = job.info().progress
    assert progress is not None
    assert progress.done == 0.3
    assert progress.left_s is not None
    assert 900 < progress.left_s <= 1000
    shown = job_lines(job.info().model_dump(mode="json"), datetime.now(timezone.utc))
    assert any("30% · 1" in line and "min left" in line for line in shown), shown
    job.cancel()
    ended(job)
    metrics = job.metrics()
    assert [curve.name for curve in metrics.curves] == ["loss"]
    assert (metrics["loss"].steps, metrics["loss"].values) == ([1, 2, 3], [1, 1 / 2, 1 / 3])


def test_an_address_of_the_users_own_stays(place: Place) -> None:
    show = (
        "import os; print([os.environ.get(f'KUBEFLOW_TRAINER_SERVER_{n}') for n in ('URL', "
        "'TOKEN', 'CA_CERT')])"
    )
    own = {"KUBEFLOW_TRAINER_SERVER_URL": "http://mine"}
    proxy = {"http_proxy": "http://proxy"}  # behind which our address would be looked for
    for variables, expected in (
        (own, "['http://mine', None, None]"),
        (proxy, "[None, None, None]"),
    ):
        job = place.run(show, env_variables=variables)
        assert [entry.text for entry in job.log_entries(follow=False, stream="stdout")] == [
            expected
        ]


def test_the_first_step_that_is_nan_is_a_hint_of_the_failed_job(place: Place) -> None:
    script = (
        "for step in range(6): print('step', step, 'loss =', 1 if step < 2 else 'nan')\nraise "
        "SystemExit(3)"
    )
    job = place.run(script)
    assert "hint: loss was NaN from step 2" in job.explain().splitlines()
    shown = job_lines(job.info().model_dump(mode="json"), datetime.now(timezone.utc))
    assert any(line.split(None, 1) == ["hint", "loss was NaN from step 2"] for line in shown), shown


USES_TIME = """
import os, time
attempt, folder = int(os.environ["CLIENT_LIB_ATTEMPT"]), os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
for step in range(1 if attempt == 1 else 11, 21 if attempt == 1 else 41):
    time.sleep(0.1)
    print(f"step {step} loss=0.5", flush=True)
    if step % 10 == 0:
        os.makedirs(folder, exist_ok=True)
        time.sleep(1.0)
        open(f"{folder}/{step}.pt", "w").close()
raise SystemExit(attempt == 1)
"""


def test_what_the_time_of_a_job_was_used_for(place: Place) -> None:
    job = place.run(USES_TIME, max_retry=1)
    info = job.info()
    assert info.state is State.SUCCEEDED, info.message
    used = job.goodput()
    assert sum(used.parts().values()) == pytest.approx(1)
    assert info.finished_at is not None
    lived = info.finished_at - info.created_at
    assert used.wall_s == pytest.approx(lived.total_seconds(), abs=0.2)
    # one in the first attempt is repeated in the second
    assert used.checkpoints_s == pytest.approx(5.0, abs=1.0)
    assert used.repeated_s == pytest.approx(1.0, abs=0.5)
    assert used.steps_s >= 3.5
    assert used.unknown_s <= 0.05 * used.wall_s


def test_what_workers_use_is_known_and_is_no_metric_of_the_job(place: Place) -> None:
    job = place.run("import time\ntime.sleep(4)", n_workers=2)
    found = place.client.job_metrics(job.info().name, rank="workers").curves
    names = {"worker/cpu_cores", "worker/memory_gib"}
    if isinstance(place, ClusterPlace):
        names.add("worker/memory_percent")  # of the limit of the pod
    assert {(curve.name, curve.rank) for curve in found} >= {
        (name, worker) for name in names for worker in (0, 1)
    }
    assert job.metrics().curves == []
