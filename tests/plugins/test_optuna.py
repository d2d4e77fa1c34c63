"""The recipe of the documentation for a search with Optuna, as it stands there."""

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from client_lib import State, get_job

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to.md"


def train(lr: float) -> float:
    """A training that takes longer with a worse value."""
    wrong = abs(math.log10(lr) + 2)
    for step in range(12):
        print(f"step {step} loss={wrong + 1 / (step + 1)}", flush=True)
        time.sleep(0.2 * wrong)
    return wrong


@pytest.mark.process
def test_trials_run_as_jobs_and_those_that_print_high_losses_are_cancelled() -> None:
    recipe = re.search(
        r"## Search with Optuna\n.*?```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL
    )
    assert recipe
    found: dict[str, Any] = {"train": train}
    exec(recipe[1], found)
    trials = found["study"].trials
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(trials) == 20
    ends = {(trial.state, get_job(trial.user_attrs["job"]).state) for trial in trials}
    assert {(TrialState.COMPLETE, State.SUCCEEDED), (TrialState.PRUNED, State.CANCELLED)} <= ends
    assert (TrialState.COMPLETE, State.CANCELLED) not in ends
    assert found["study"].best_value == min(t.value for t in trials if t.value is not None)
    whole = next(trial for trial in trials if trial.state == TrialState.COMPLETE)
    assert whole.intermediate_values[11] == whole.value + 1 / 12
