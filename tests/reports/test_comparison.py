"""Jobs beside each other: the arguments in which they differ, and their metrics."""

from __future__ import annotations

from typing import Any

from client_lib.reports.comparison import compared, rows

from .test_curves import curve


def job(name: str, *args: str, values: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    group = {"name": "scan", "values": values} if values else None
    shown = {
        "script": "/home/ann/train.py",
        "args": list(args),
        "flags": {},
        "env_variables": {},
        "n_workers": 1,
        **spec,
    }
    return {"name": name, "state": "SUCCEEDED", "group": group, "spec": shown}


def arguments(*jobs: dict[str, Any]) -> list[dict[str, str]]:
    return [found["arguments"] for found in compared([(each, []) for each in jobs])]


def test_arguments_that_differ_are_found_by_their_names_in_any_form() -> None:
    one = job("a", "--lr", "0.1", "--epochs=3", "-n", "-1", "--amp", "--seed", "1", "data")
    other = job("b", "--epochs=5", "model.lr=3", "-n", "2", "more", "--lr=0.1", script="train.py --seed 2")
    assert arguments(one, other) == [
        {"script": "/home/ann/train.py", "epochs": "3", "n": "-1", "amp": "true", "seed": "1", "argument 1": "data"},
        {"script": "train.py", "epochs": "5", "n": "2", "seed": "2", "argument 1": "more", "model.lr": "3"},
    ]


def test_calls_of_functions_flags_variables_and_fields_are_compared_by_their_values() -> None:
    call = {"script": "train()", "env_variables": {"SEED": "1"}, "max_retry": None}
    assert arguments(
        job("a", "lr=0.1", "32", **call), job("b", "lr=0.2", "32", script="train()", n_workers=2, max_retry=2)
    ) == [{"n_workers": "1", "lr": "0.1", "$SEED": "1"}, {"n_workers": "2", "max_retry": "2", "lr": "0.2"}]
    assert arguments(job("a", flags={"lr": 0.1, "amp": None}), job("b", "--lr", "0.1")) == [{"amp": "true"}, {}]


def test_values_of_a_group_stand_under_the_names_that_it_tries() -> None:
    each = [job(f"scan-{lr}", f"--out=runs/{lr}", values={"lr": lr}) for lr in (0.1, 0.2)]
    assert arguments(*each) == [{"out": "runs/0.1", "lr": "0.1"}, {"out": "runs/0.2", "lr": "0.2"}]


def test_a_row_has_the_last_and_the_best_value_of_each_metric() -> None:
    loss, again = curve([3.0, 1.0, 2.0]), curve([9.0], rank=None)
    found = compared([(job("a", "--lr=1"), [loss, again, curve([1 / 3], name="lr")]), (job("b", "--lr=2"), [])])
    assert found[0]["metrics"] == {"loss": {"last": 2.0, "best": 1.0}, "lr": {"last": 1 / 3}}
    headings, one, other = rows(found)
    assert headings == ["NAME", "STATE", "lr", "loss", "best loss", "lr"]
    assert (one, other) == (["a", "SUCCEEDED", "1", "2", "1", "0.3333"], ["b", "SUCCEEDED", "2", "", "", ""])
    assert rows(found, exact=True)[1][-1] == repr(1 / 3)


def test_nothing_and_nan_are_no_error() -> None:
    assert (compared([]), rows([])) == ([], [["NAME", "STATE"]])
    found = compared([(job("a"), [curve(["NaN"])])])
    assert found[0] == {"name": "a", "state": "SUCCEEDED", "arguments": {}, "metrics": {"loss": {"last": "NaN"}}}
    assert rows(found, exact=True)[1][-1] == "nan"
