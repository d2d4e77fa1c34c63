"""Curves and progress as text."""

import math
from typing import Any

import pytest

from client_lib.reports import curves, table
from client_lib.spec.wording import about
from tests.kit.jobs import job_json


def curve(values: list[Any], **changes: Any) -> dict[str, Any]:
    steps = [float(10 * n) for n in range(len(values))]
    usual = {"name": "loss", "rank": 0, "axis": "step", "points": len(values), "thinned": False}
    return {**usual, "steps": steps, "times": steps, "values": values, **changes}


def test_a_loss_is_best_where_it_is_least_and_an_accuracy_where_it_is_greatest() -> None:
    found = {
        "curves": [
            curve([3.0, 1.0, 2.0]),
            curve([3, 5, 2], name="val_acc", axis="epoch"),
            curve([1, 2], name="lr"),
        ]
    }
    assert [row[3:] for row in curves.rows(found)] == [
        ("2", "step 20", "1", "step 10", "3"),
        ("2", "epoch 20", "5", "epoch 10", "3"),
        ("2", "step 10", "", "", "2"),
    ]


def test_nan_is_shown_and_is_never_the_best() -> None:
    (row,) = curves.rows({"curves": [curve([1.0, 0.5, "NaN"], rank=None)]})
    assert row[1:] == ("-", "█▁!", "nan", "step 20", "0.5", "step 10", "3")


@pytest.mark.parametrize(
    "values", [[], [1.0], [2.0] * 100, [math.nan], [-1e308, 1e308], [float(n) for n in range(33)]]
)
def test_a_spark_line_has_any_values(values: list[float]) -> None:
    assert len(curves.spark(values)) == min(32, len(values))


def test_csv_has_every_digit() -> None:
    rows = list(curves.csv_rows({"curves": [curve([0.1, "NaN"])]}))
    assert rows[1:] == [
        ("loss", "0", "0", "0.000000", "0.1"),
        ("loss", "0", "10", "10.000000", "nan"),
    ]


def test_reasons_why_curves_are_not_complete() -> None:
    assert curves.facts(
        {"curves": [curve([1.0], thinned=True)], "dropped": 3, "complete": False}
    ) == [
        "loss: more values than are kept, some are left out",
        "the log is long, and was not read to its end yet: ask again",
        "3 values of client_lib.log are missing: too many calls or names",
    ]


RUNNING = {"state": "RUNNING", "reason": "Running"}


def test_the_progress_of_a_running_job() -> None:
    progress = {"done": 0.459, "left_s": 720.0, "left_from_s": 660, "left_to_s": 5000, "rate": 3.5}
    job = {**RUNNING, "progress": {**progress, "metrics": {"loss": 0.23123, "acc": "NaN"}}}
    assert table.progress(job) == "45% · 12 min left · loss 0.2312"
    assert table.progress_facts(job) == (
        "45% · 12 min left (11 min to 83 min) · 3.5 steps/s",
        "loss 0.2312, acc nan",
    )
    assert table.progress({**RUNNING, "progress": {"done": 0.5}}) == "50%"
    assert table.progress(RUNNING) == table.progress({**RUNNING, "progress": None}) == ""
    assert table.progress_facts(RUNNING) == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (89, "89 s"), (91, "2 min"), (6000, "1.7 h"), (2e5, "2.3 d")]
)
def test_estimated_times_have_two_digits(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_jobs_are_ranked_by_their_best_value_and_those_without_it_stand_at_the_end() -> None:
    def ended(name: str) -> dict[str, Any]:
        return job_json(name, "SUCCEEDED", spec={"script": "train.py", "args": ["--lr", name]})

    def losses(*values: Any) -> dict[str, Any]:
        return {
            "name": "x",
            "axis": "step",
            "steps": list(range(len(values))),
            "values": list(values),
        }

    jobs = [
        (ended("a"), [losses(3.0, 1.0, 2.0)]),
        (ended("b"), []),
        (ended("c"), [losses("nan", 0.5)]),
        (ended("d"), [losses("nan")]),
    ]
    falling = curves.ranked(jobs, "x")
    assert [(each["name"], each.get("best"), each.get("step")) for each in falling] == [
        ("c", 0.5, 1),
        ("a", 1.0, 1),
        ("b", None, None),
        ("d", None, None),
    ]
    assert [each["name"] for each in curves.ranked(jobs, "x", largest=True)][:2] == ["a", "c"]
    assert curves.ranking(falling)[0] == (
        "c",
        "SUCCEEDED",
        "0.5",
        "step 1",
        "0.5",
        "train.py --lr c",
    )
    assert curves.ranking(falling)[2] == ("b", "SUCCEEDED", "-", "-", "-", "train.py --lr b")


# --- jobs beside each other


def submitted(
    name: str, *args: str, values: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    group = {"name": "scan", "values": values} if values else None
    shown = {
        "script": "/home/ann/train.py",
        "args": list(args),
        "flags": {},
        "env_variables": {},
        "n_workers": 1,
        **spec,
    }
    return job_json(name, "SUCCEEDED", group=group, spec=shown)


def arguments(*jobs: dict[str, Any]) -> list[dict[str, str]]:
    return [found["arguments"] for found in curves.compared([(each, []) for each in jobs])]


def test_arguments_that_differ_are_found_by_their_names_in_any_form() -> None:
    one = submitted("a", "--lr", "0.1", "--epochs=3", "-n", "-1", "--amp", "--seed", "1", "data")
    other = submitted(
        "b", "--epochs=5", "model.lr=3", "-n", "2", "more", "--lr=0.1", script="train.py --seed 2"
    )
    assert arguments(one, other) == [
        {
            "script": "/home/ann/train.py",
            "epochs": "3",
            "n": "-1",
            "amp": "true",
            "seed": "1",
            "argument 1": "data",
        },
        {
            "script": "train.py",
            "epochs": "5",
            "n": "2",
            "seed": "2",
            "argument 1": "more",
            "model.lr": "3",
        },
    ]


def test_calls_of_functions_flags_variables_and_fields_are_compared_by_their_values() -> None:
    call: dict[str, Any] = {"script": "train()", "env_variables": {"SEED": "1"}, "max_retry": None}
    assert arguments(
        submitted("a", "lr=0.1", "32", **call),
        submitted("b", "lr=0.2", "32", script="train()", n_workers=2, max_retry=2),
    ) == [
        {"n_workers": "1", "lr": "0.1", "$SEED": "1"},
        {"n_workers": "2", "max_retry": "2", "lr": "0.2"},
    ]
    assert arguments(
        submitted("a", flags={"lr": 0.1, "amp": None}), submitted("b", "--lr", "0.1")
    ) == [
        {"amp": "true"},
        {},
    ]


def test_values_of_a_group_stand_under_the_names_that_it_tries() -> None:
    each = [submitted(f"scan-{lr}", f"--out=runs/{lr}", values={"lr": lr}) for lr in (0.1, 0.2)]
    assert arguments(*each) == [{"out": "runs/0.1", "lr": "0.1"}, {"out": "runs/0.2", "lr": "0.2"}]


def test_a_row_has_the_last_and_the_best_value_of_each_metric() -> None:
    loss, again = curve([3.0, 1.0, 2.0]), curve([9.0], rank=None)
    found = curves.compared(
        [
            (submitted("a", "--lr=1"), [loss, again, curve([1 / 3], name="lr")]),
            (submitted("b", "--lr=2"), []),
        ]
    )
    assert found[0]["metrics"] == {"loss": {"last": 2.0, "best": 1.0}, "lr": {"last": 1 / 3}}
    headings, one, other = curves.compared_rows(found)
    assert headings == ["NAME", "STATE", "lr", "loss", "best loss", "lr"]
    assert (one, other) == (
        ["a", "SUCCEEDED", "1", "2", "1", "0.3333"],
        ["b", "SUCCEEDED", "2", "", "", ""],
    )
    assert curves.compared_rows(found, exact=True)[1][-1] == repr(1 / 3)


def test_nothing_and_nan_are_no_error() -> None:
    assert (curves.compared([]), curves.compared_rows([])) == ([], [["NAME", "STATE"]])
    found = curves.compared([(submitted("a"), [curve(["NaN"])])])
    assert found[0] == {
        "name": "a",
        "state": "SUCCEEDED",
        "arguments": {},
        "metrics": {"loss": {"last": "NaN"}},
    }
    assert curves.compared_rows(found, exact=True)[1][-1] == "nan"
