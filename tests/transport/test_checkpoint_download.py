"""The choice of the checkpoint that a download fetches."""

from datetime import datetime, timezone

import pytest

from client_lib.checkpoints.metric_values import MetricValues
from client_lib.errors import NotFound
from client_lib.spec.checkpoints import JobCheckpoint
from client_lib.spec.metric_names import wanted
from client_lib.transport.checkpoint_download import best_checkpoint


def checkpoint(path: str, step: int | None) -> JobCheckpoint:
    at = datetime.fromtimestamp(100.0 + (step or 0), timezone.utc)
    return JobCheckpoint(
        path=path, format="torch", step=step, size=1, modified_at=at, state="complete"
    )


@pytest.fixture
def values() -> MetricValues:
    found = MetricValues()
    for step, value in ((1, 0.5), (2, 0.9)):
        found.add(step, 100.0 + step, value)
    return found


@pytest.mark.parametrize("path", ["/c/step-1.pt", "/c/step-1/model.pt", "/c/final"])
def test_the_best_one_tells_its_step(values: MetricValues, path: str) -> None:
    early = checkpoint(path, 1)
    last = checkpoint("/c/last.pt", 2)  # the step that the job had printed before
    assert best_checkpoint([early, last], values, wanted("acc")) == early


def test_files_without_a_step_do_not_count(values: MetricValues) -> None:
    with pytest.raises(NotFound, match="no checkpoint has a value of acc"):
        best_checkpoint([checkpoint("/c/last.pt", 2)], values, wanted("acc"))
