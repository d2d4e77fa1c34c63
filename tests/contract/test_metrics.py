"""The metrics of a job, from each source that needs no other package, on both runtimes."""

from __future__ import annotations

import pytest

from client_lib.spec.states import State
from tests.contract.places import Place

pytestmark = pytest.mark.process

SCRIPT = """
import os, client_lib
for step in range(5):
    print(f"step {step}/5 loss={1 / (step + 1):.4f} it<{step}> odd~{step * 2}~", flush=True)
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
    assert metrics["exact"].values == [step / 3 for step in range(5)]
    assert metrics["exact"].steps == [0, 10, 20, 30, 40]
    of_all = place.client.job_metrics(job.info().name, rank="all").curves
    assert sorted((curve.name, curve.rank) for curve in of_all if curve.name == "odd") == [("odd", 0), ("odd", 1)]


def test_an_expression_without_an_end_stops_neither_log_nor_job(place: Place) -> None:
    job = place.run("print('a' * 200)\nprint('the end')", metrics="(?P<n>[0-9]+)|(a+)+b")
    assert job.info().state is State.SUCCEEDED, job.info().message
    lines = [entry.text for entry in job.log_entries(follow=False)]
    assert "the end" in lines
    assert "the expression of `metrics` takes too long, and is not applied any more" in lines
