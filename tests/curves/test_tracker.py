"""Curves and progress of whole logs."""

import json
import pickle

import pytest

from client_lib.launcher_protocol.record import METRICS, metric_lines
from client_lib.spec.wire import JobProgress
from server_stub.curves.losses import sentence
from server_stub.curves.points import Points
from server_stub.curves.tracker import OBSERVED, Key, Tracker

CHATTY = {
    "a table": ["| layer | params |", "| conv1 | 320 |", "| conv2 | 18496 |", "| fc 1 | 0.5 |"] * 3,
    "versions": ["torch==2.15.0", "numpy 2.4", "python: 3.11", "cuda=12.4", "version: 3"] * 4,
    "timings": ["load: 0.52", "load took 1.2 s", "time=3.1ms", "elapsed: 4", "forward: 0.031 s"]
    * 4,
    "a traceback": [
        "Traceback (most recent call last):",
        '  File "a.py", line 3',
        "    loss = 0.5",
        "ValueError: 3",
    ]
    * 4,
    "tracebacks with notes": [
        "Traceback (most recent call last):",
        "    step=3 loss=0.5",
        "  lr: 1",
        "KeyError: 'lr'",
    ]
    * 4,
    "downloads": [f"model.bin: {n}%|██ | {n}.0M/100M [00:01<00:02, {n}MB/s]" for n in range(1, 9)],
    "a download in bytes": [f"x: {n}%|██ | {n}/100 [00:01<00:02, 30.1kB/s]" for n in range(9)],
    "pip": [f"Collecting numpy=={n}.0\n  Downloading numpy-{n}.whl (18.2 MB)" for n in range(9)],
    "addresses": [f"worker {n} at 10.0.0.{n}:2950{n}, rank={n} port: {n}" for n in range(9)],
    "a configuration": ["{'lr': 0.1, 'batch_size': 32, 'epochs': 3}", "seed=3", "batch size: 32"],
    "dates": [f"2026-11-{n} 10:58:5{n} INFO started {n} of 9" for n in range(1, 9)],
    "paths": [f"saved /out/step=3/loss-0.{n}.pt" for n in range(9)],
    "docker": [f"Step {n}/12 : RUN pip install torch=={n}.0 python:3.{n}" for n in range(1, 12)],
    "a build": [f"[{n}/40] Building CXX object a{n}.o -O2 -march=3" for n in range(1, 40)],
    "log records": [
        f'{{"level": "info", "ts": 17.{n}, "line": {n}, "msg": "x", "pid": 3}}' for n in range(9)
    ],
    "sizes": [f"step {n}: copied: {n}.5 MB, read {n} bytes, size={n}" for n in range(9)],
    "prose": [
        f"In iteration {n} we lose 3 of 7; accuracy is what counts, loss of 5 too" for n in range(9)
    ],
    "warnings": [f"a.py:{n}: UserWarning: lr=0.{n} at step {n} is low" for n in range(9)],
    "memory": [f"epoch {n} mem: {n}.1 GiB, gpu: {n}, cpu_time={n}" for n in range(9)],
    "once each": ["loss: 0.5", "val acc: 0.9", "Accuracy: 97.1%"] * 2,
}


def tracked(lines: list[str], stream: str = "stdout", kind: str = "", most: int = 10**6) -> Tracker:
    """A line in each second."""
    tracker = Tracker(most)
    for second, line in enumerate(lines):
        tracker.add(float(second), 0, stream, kind, line)
    return tracker


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([f"step {n} loss=0.5" for n in (1, 2, 9, 3)], 9),
        ([f"train:  5%|#  | {n}/900 [00:01<00:09, 1.0it/s]" for n in (10, 20, 30)], 30),
        (
            [f"step {n}/900 loss=0.5" for n in (10, 20, 30)] + [f"eval {n}/50" for n in range(50)],
            30,
        ),
        (["epoch 1 loss=0.5", "epoch 2 loss=0.4", "epoch 3 loss=0.3"], None),
        ([], None),
    ],
)
def test_the_step_that_a_log_has_reached(lines: list[str], step: float | None) -> None:
    assert tracked(lines).step() == step


def test_a_logged_step_that_is_no_number_is_not_reached() -> None:
    steps = (float("nan"), 4.0, float("inf"))
    assert (
        tracked(
            [metric_lines(0, step, {"loss": 0.5})[0].decode() for step in steps], "metrics"
        ).step()
        == 4
    )


def columns(curves: dict[Key, Points], name: str) -> tuple[list[float], list[float]]:
    points = curves[0, name]
    return points.steps.tolist(), points.values.tolist()


@pytest.mark.parametrize("kind", CHATTY)
def test_a_chatty_script_has_no_curves(kind: str) -> None:
    assert len(CHATTY) == 20
    assert tracked(CHATTY[kind]).curves() == {}


def test_a_name_is_a_curve_from_its_third_value_on() -> None:
    lines = [f"step {n} loss={n / 10}" for n in range(3)]
    assert tracked(lines[:2]).curves() == {}
    assert columns(tracked(lines).curves(), "loss") == ([0, 1, 2], [0.0, 0.1, 0.2])


def test_steps_of_epochs_are_numbered_across_epochs() -> None:
    lines = [f"epoch {epoch} step {step}/4 loss=1" for epoch in (0, 1) for step in (2, 4)]
    assert columns(tracked(lines).curves(), "loss")[0] == [2, 4, 6, 8]


def test_values_without_a_step_are_counted_or_lie_over_epochs() -> None:
    assert columns(tracked(["loss 0.5"] * 3).curves(), "loss")[0] == [1, 2, 3]
    assert columns(
        tracked([f"{{'loss': 1, 'epoch': {n / 4}}}" for n in range(3)]).curves(), "loss"
    )[0] == [
        0,
        0.25,
        0.5,
    ]


def test_a_line_that_came_in_parts_is_one() -> None:
    tracker = Tracker(100)
    for n in range(3):
        tracker.add(n, 0, "stdout", "+", f"step {n} lo")
        tracker.add(n, 0, "stderr", "", "loss: 7")
        tracker.add(n, 0, "stdout", "", "ss=0.5")
    assert columns(tracker.curves(), "loss")[1] == [7, 7, 7], (
        "the first stream that tells a name has its curve"
    )
    tracker = Tracker(100)
    for n in range(3):
        tracker.add(n, 0, "stdout", "+", f"step {n} lo")
        tracker.add(n, 0, "stdout", "", "ss=0.5")
    assert columns(tracker.curves(), "loss") == ([0, 1, 2], [0.5] * 3)


def test_lines_after_a_traceback_count_again() -> None:
    failure = ["Traceback (most recent call last):", "    loss = 0.1", "ValueError: loss 3"]
    assert columns(tracked([*failure, *(f"step {n} loss=2" for n in range(3))]).curves(), "loss")[
        1
    ] == [2, 2, 2]


def test_too_many_points_are_thinned() -> None:
    curves = tracked([f"step {n} loss={int(n == 777)}" for n in range(3000)], most=1000).curves()
    points = curves[0, "loss"]
    assert points.thinned
    assert len(points) <= 1000
    assert (points.steps[0], points.steps[-1]) == (0, 2999)
    assert max(points.values) == 1


@pytest.mark.parametrize(
    "line",
    [
        "step {n}/100",
        " {n}%|██ | {n}/100 [00:12<00:15,  3.61it/s]",
        "epoch {n}/100 loss=1",
        "[{n}/100] x",
    ],
)
def test_counters_tell_the_progress_and_the_time_left(line: str) -> None:
    estimate = tracked([line.format(n=n) for n in range(1, 26)]).progress(0, now=24.0)
    assert estimate.done == pytest.approx(0.25, abs=0.011)
    assert estimate.left_s == pytest.approx(75, abs=1.1)
    assert estimate.rate == pytest.approx(1)


def test_a_pause_between_steps_widens_the_range_of_the_time_left() -> None:
    tracker = Tracker(100)
    for n in range(1, 41):
        tracker.add(n + 20 * (n // 10), 0, "stdout", "", f"step {n}/80")
    estimate = tracker.progress(0, now=40 + 80)
    assert estimate.left_from_s is not None
    assert estimate.left_s is not None
    assert estimate.left_to_s is not None
    assert estimate.left_from_s <= estimate.left_s <= estimate.left_to_s
    assert estimate.left_s == pytest.approx(120, rel=0.25)


def test_a_bar_of_each_epoch_is_no_progress_of_the_job() -> None:
    lines = [f"{n}%|██ | {n}/100 [00:12<00:15,  3.61it/s]" for _ in range(3) for n in range(100)]
    assert tracked(lines).progress(0, now=300).done is None
    lines = [f"Epoch 0: {n}%|██ | {n}/100 [00:12<00:15, 3.6it/s]" for n in range(50)]
    assert tracked(lines).progress(0, now=50).done is None


def test_the_outer_bar_counts_and_a_silent_one_tells_no_time() -> None:
    train = "{n}%|██ | {n}/100 [00:12<00:15,  3.61it/s]"
    evaluation = "eval: {n}%|██ | {n}/10 [00:12<00:15,  3.61it/s]"
    lines = [train.format(n=n) for n in range(20)] + [evaluation.format(n=n) for n in range(5)]
    estimate = tracked(lines).progress(0, now=25)
    assert estimate.done == 0.19
    late = tracked(lines).progress(0, now=500)
    assert (late.done, late.left_s) == (0.19, None)


def test_values_of_a_script_take_the_places_of_printed_names_without_a_curve() -> None:
    tracker = tracked(
        [f"step {n} name_{n}=1" for n in range(600)] + [f"step {n} loss=1" for n in range(3)]
    )
    assert len(tracker.points) == 500
    for n in range(501):
        tracker.add(n, 0, "metrics", "", metric_lines(0, n, {f"exact_{n}": n})[0].decode())
    assert len(tracker.curves()) == 500
    assert tracker.dropped == 1
    assert tracker.count == 500


def test_points_that_exact_values_replace_are_not_counted() -> None:
    tracker = tracked([f"step {n} loss=1" for n in range(100)])
    tracker.add(100.0, 0, "metrics", "", metric_lines(0, 100, {"loss": 0.5})[0].decode())
    assert tracker.count == len(tracker.points[0, "loss"]) == 1


def test_a_log_that_names_any_ranks_takes_little_memory() -> None:
    tracker = Tracker(10**6)
    for rank in range(20_000):
        tracker.add(0.0, rank, "stdout", "+", "a line without its end")
        tracker.add(0.0, rank, "stderr", "", "Traceback (most recent call last):")
    assert len(pickle.dumps(tracker)) < 10**5


def test_what_a_library_posts_now_and_then_gives_way_to_other_sources() -> None:
    tracker = Tracker(10**6)

    def posts(step: int, percent: int, left_s: float | None = None) -> None:
        line = metric_lines(0, step, {"loss": 9.0, "lr": 0.1}, 0, [percent, left_s])[0]
        tracker.add(100.0 + step, 0, "metrics", "", line.decode())

    posts(5, 10, 60.0)
    assert tracker.progress(0, 115.0).model_dump(exclude={"metrics"}, exclude_none=True) == {
        "done": 0.1,
        "left_s": 50.0,
        "left_from_s": 50.0,
        "left_to_s": 50.0,
    }
    posts(20, 250)
    assert tracker.progress(0, 130.0).done == 1
    assert columns(tracker.curves(), "loss") == ([5, 20], [9, 9])
    for n in range(3):
        tracker.add(200.0 + n, 0, "stdout", "", f"step {n}/9 loss={n}")
    posts(3, 50)
    assert columns(tracker.curves(), "loss") == ([0, 1, 2], [0, 1, 2])
    assert columns(tracker.curves(), "lr") == ([5, 20, 3], [0.1] * 3)
    assert tracker.progress(0, 203.0).done == pytest.approx(2 / 9)
    for wrong in ("[0, 1, 0, {}, 3]", '[0, 1, 0, {}, ["x", 1]]', "[0, 1, 0, {}, [1, 2, 3]]"):
        tracker.add(300.0, 0, "metrics", "", wrong)


@pytest.mark.parametrize("left_s", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_a_posted_time_left_that_has_no_end_is_not_told(left_s: str) -> None:
    tracker = Tracker(10**6)
    tracker.add(100.0, 0, "metrics", "", f"[0, 1, 0, {{}}, [10, {left_s}]]")
    assert tracker.progress(0, 101.0) == JobProgress(done=0.1)


def lost(tracker: Tracker) -> str:
    return sentence(tracker.losses())


def test_a_lost_loss_is_told_with_its_step_also_after_a_restart() -> None:
    lines = [
        f"step {n} loss={'nan' if n > 4 else n} grad_norm={'nan' if n > 3 else n}" for n in range(9)
    ]
    tracker = tracked(lines)
    assert lost(tracker) == "loss was NaN from step 5"
    assert lost(Tracker(10**6, tracker.points)) == "loss was NaN from step 5"
    assert lost(tracked(["loss: 1", "loss: inf", "loss: nan"])) == "loss was infinite from value 2"
    assert lost(tracked(["loss: 1", "loss: nan", "loss: 1"])) == ""
    assert lost(tracked(["loss: 1"] * 3)) == ""


def test_a_nan_of_printed_values_does_not_stay_when_exact_values_replace_them() -> None:
    tracker = tracked([f"step {n} loss={'nan' if n > 0 else n}" for n in range(4)])
    assert lost(tracker) == "loss was NaN from step 1"
    for step in range(100, 105):
        tracker.add(float(step), 0, "metrics", "", metric_lines(0, step, {"loss": 0.5})[0].decode())
    assert lost(tracker) == ""


def observed(tracker: Tracker, at: float, step: object, **values: object) -> None:
    tracker.add(at, None, METRICS, "", json.dumps([0, OBSERVED, step, values]))


def test_steps_of_an_optimizer_are_the_steps_of_a_script_that_prints_none() -> None:
    tracker = Tracker(10**6)
    for step in range(1, 5):
        observed(tracker, float(step), step, loss_scale=2.0, **{"train/step": step})
    assert tracker.observed(5.0).metrics == {"loss_scale": 2.0, "train/step": 4.0}
    assert tracker.step() == 4
    assert tracker.reached() == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert tracker.printed() == []  # too far apart for the steps of checkpoints
    assert tracker.first_steps() == "3 steps of an optimizer"
    assert tracker.curves()[0, "train/step"].axis == "step"
    assert tracker.losses() == []


def test_steps_of_an_optimizer_take_the_place_of_nothing_that_a_script_tells() -> None:
    tracker = Tracker(10**6)
    for step in range(1, 5):
        observed(tracker, float(step), 100 * step, lr=0.5, **{"train/step": 100 * step})
        tracker.add(float(step), 0, "stdout", "", f"step {step} lr=0.1")
        observed(tracker, float(step), 100 * step, lr=0.5)
    assert list(tracker.curves()[0, "lr"].values) == [0.1] * 4
    assert tracker.step() == 4
    assert tracker.progress(0, 5.0).metrics == {"lr": 0.1}
    assert tracker.observed(5.0).metrics == {"train/step": 400.0}
    assert tracker.first_steps() == "3 values of lr"


@pytest.mark.parametrize("posted", [False, True])
def test_metrics_of_a_script_take_the_places_of_curves_of_optimizers(posted: bool) -> None:
    tracker = Tracker(10**6)
    names = [f"m{number}" for number in range(500)]
    for step in range(4):
        observed(tracker, float(step), step, lr=0.5, **{"train/step": step})
    for name in names:
        for step in range(3):
            if posted:
                line = metric_lines(0, step, {name: 0.5})[0].decode()
                tracker.add(float(step), None, METRICS, "", line)
            else:
                tracker.add(float(step), 0, "stdout", "", f"step {step} loss_{name}=0.5")
    observed(tracker, 4.0, 4, lr=0.5, **{"train/step": 4})
    assert len(tracker.curves()) == 500
    assert all(curve.source != OBSERVED for curve in tracker.points.values())


@pytest.mark.parametrize(
    "rest", [[], [None, {}], ["x", {}], [1, [2]], [1, {"a": "x"}], [1, {"\ud800": 1}], [1e400, {}]]
)
def test_a_script_may_write_anything_in_the_name_of_its_optimizers(rest: list[object]) -> None:
    tracker = Tracker(10**6)
    tracker.add(0.0, None, METRICS, "", json.dumps([0, OBSERVED, *rest]))
    tracker.add(0.0, None, METRICS, "", json.dumps(["x", OBSERVED, *rest]))
    assert all(name.isprintable() for _, name in tracker.points)


def test_a_plan_of_steps_gives_the_time_left_where_nothing_else_does() -> None:
    tracker = Tracker(10**6)
    for step in range(1, 5):
        line = [0, OBSERVED, 10 * step, {"train/step": 10 * step}, 100]
        tracker.add(float(step), None, METRICS, "", json.dumps(line))
    found = tracker.observed(4.0)
    assert (found.done, found.left_s) == (0.4, pytest.approx(6.0))
    assert tracker.progress(0, 4.0).done is None
