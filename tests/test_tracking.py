"""`client_lib.log` in a script: within a job, outside, and with a pipe that nobody reads."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import client_lib
from client_lib import tracking
from client_lib.launcher_protocol.record import METRICS_PIPE


@pytest.fixture(autouse=True)
def new_script(monkeypatch: pytest.MonkeyPatch) -> None:
    # a script has one process, which begins with these
    monkeypatch.setattr(tracking, "_pipe", None)
    monkeypatch.setattr(tracking, "config", {})


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    path = tmp_path / "metrics"
    os.mkfifo(path)
    monkeypatch.setenv(METRICS_PIPE, str(path))
    monkeypatch.setenv("RANK", "3")
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def lines(pipe: int) -> list[Any]:
    return [json.loads(line) for line in os.read(pipe, 65536).splitlines()]


def test_numbers_are_written_with_rank_and_step(pipe: int) -> None:
    run = client_lib.init(project="p", config={"lr": 0.1})
    assert run.config == {"lr": 0.1}
    run.log({"loss": 0.5, "image": object(), "note": "x", "ok": True})
    client_lib.log({"loss": 0.25})
    client_lib.log({"loss": 0.125}, step=10)
    assert lines(pipe) == [
        [3, 0, 0, {"loss": 0.5, "ok": 1.0}],
        [3, 1, 0, {"loss": 0.25}],
        [3, 10, 0, {"loss": 0.125}],
    ]


def test_a_full_pipe_drops_values_and_tells_how_many(pipe: int) -> None:
    for _ in range(5000):
        client_lib.log({"loss": 0.5})
    dropped = 5000 - len(lines(pipe))
    assert dropped > 0
    client_lib.log({"loss": 0.5})
    client_lib.finish()
    assert lines(pipe) == [[3, 5000, dropped, {"loss": 0.5}]]


def test_nothing_raises(pipe: int) -> None:
    client_lib.log({"x" * 5000: 1.0})
    client_lib.log(None)  # type: ignore[arg-type]
    client_lib.log({"loss": 1.0}, step="x")  # type: ignore[arg-type]
    client_lib.log({"loss": 1.0})
    assert [line[2] for line in lines(pipe)] == [1]


def test_many_values_of_one_call_arrive(pipe: int) -> None:
    values = {f"layer_{n}/gradient_norm/of/its/weights": 1 / (n + 1) for n in range(500)}
    client_lib.log(values, step=3)
    found: dict[str, float] = {}
    for rank, step, dropped, part in lines(pipe):
        assert (rank, step, dropped) == (3, 3, 0)
        found.update(part)
    assert found == values


@pytest.mark.parametrize("given", [argparse.Namespace(lr=0.1), {"lr": 0.1}])
def test_a_configuration_may_be_a_namespace(given: object) -> None:
    assert client_lib.init(config=given).config == {"lr": 0.1}


@pytest.mark.parametrize("given", [None, "config.yaml", 3, [1]])
def test_other_configurations_are_ignored(given: object) -> None:
    assert client_lib.init(config=given).config == {}


def test_an_alert_on_a_closed_stderr_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as closed:
        # a script may have closed its own
        monkeypatch.setattr("sys.stderr", closed)
    client_lib.alert("loss", "is NaN")


@pytest.mark.parametrize("path", [None, "/there/is/none"])
def test_outside_a_job_nothing_happens(
    path: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(METRICS_PIPE, raising=False)
    if path:
        monkeypatch.setenv(METRICS_PIPE, path)
    client_lib.log({"loss": 0.5})
    client_lib.finish()
    assert capfd.readouterr() == ("", "")
    client_lib.alert("loss", "is NaN")
    assert capfd.readouterr().err == "ALERT loss: is NaN\n"


def test_an_alert_leaves_the_process_cut_and_counted(
    pipe: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(25):
        client_lib.alert(f"{number} {'ü' * 300}", "x" * 3000)
    found = lines(pipe)
    assert [line[:2] for line in found] == [[3, "alert"]] * 20
    title, text = found[0][2]
    assert (title[:3], len(title), len(text)) == ("0 ü", 100, 400)
    assert capfd.readouterr().err.count("ALERT ") == 25
