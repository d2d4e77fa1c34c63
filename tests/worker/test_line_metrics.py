"""Metrics that a regular expression of the job finds in lines, and what an
expression without an end may cost.
"""

import json
import signal
import time
from collections.abc import Callable

import pytest

from client_lib.errors import InvalidRequest
from client_lib.submit.arguments import checked_spec
from client_lib.worker import line_metrics as module
from client_lib.worker.line_metrics import LineMetrics
from client_lib.worker.stamp import Sequence, Stamper
from tests.kit.bounds import Bounds

Read = Callable[[bytes], "list[object]"]


def reader(
    expression: str, said: list[str] | None = None, stream: str = "stdout", rank: str = "3"
) -> Read:
    """Values of the lines that a rank prints."""
    lines: list[bytes] = []
    metrics = LineMetrics(expression, lines.append, ([] if said is None else said).append)
    stamper = Stamper(Sequence(0), rank, stream)

    def read(printed: bytes) -> list[object]:
        metrics.add(stamper.feed(printed, 0.0))
        found = [json.loads(line) for line in b"".join(lines).splitlines()]
        lines.clear()
        return found

    return read


def test_named_groups_are_metrics_and_step_is_their_step() -> None:
    read = reader(r"it (?P<step>\d+) .*ppl (?P<ppl>\S+)|lr\((?P<lr>[^)]*)\)")
    assert read(b"hello\nit 7 at 1.5/s: ppl 12.5 lr(1e-3)\nlr(none)\n") == [
        [3, 7, 0, {"ppl": 12.5, "lr": 0.001}]
    ]
    assert read(b"lr(0.5) lr(0.25)\n") == [[3, None, 0, {"lr": 0.25}]]
    assert repr(read(b"it 8 ppl nan\n")) == "[[3, 8.0, 0, {'ppl': nan}]]"


def test_a_line_is_read_when_it_is_whole() -> None:
    read = reader(r"loss (?P<loss>\S+)$")
    assert read(b"loss 0." + b"x" * 3 + b"\nloss 0.") == []
    assert read(b"125\n") == [[3, None, 0, {"loss": 0.125}]]
    # the first is data
    assert read(b"loss 1 " + b"x" * 40_000 + b" loss 1\nloss 2\n") == [[3, None, 0, {"loss": 2}]]


def test_the_end_of_a_line_that_is_too_long_is_no_line() -> None:
    read = reader(r"loss (?P<loss>\S+)$")
    assert read(b"x" * 40_000) == []
    assert read(b" loss 5\n") == []
    assert read(b"loss 2\n") == [[3, None, 0, {"loss": 2}]]


def test_lines_of_no_rank_count_and_messages_of_the_launcher_do_not() -> None:
    assert reader("(?P<n>[0-9]+)", stream="train.log", rank="-")(b"5\n") == [
        [None, None, 0, {"n": 5}]
    ]
    for stream in ("launcher", "metrics"):
        assert reader("(?P<n>[0-9]+)", stream=stream)(b"5\n") == []


def test_an_expression_without_an_end_is_given_up_within_its_time_and_said() -> None:
    said: list[str] = []
    read, before = reader("(?P<n>[0-9]+) |(a+)+b", said), signal.getsignal(signal.SIGVTALRM)
    begin = time.process_time()
    assert read(b"1 \n" + b"a" * 200 + b"\n2 \n") == [[3, None, 0, {"n": 1}]]
    assert 0.4 < time.process_time() - begin < 3
    assert said == ["the expression of `metrics` takes too long and was switched off"]
    assert read(b"3 \n") == []
    assert len(said) == 1
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_a_slow_expression_is_given_up_when_it_has_used_its_share(
    bounds: Bounds,
) -> None:
    bounds(module, _FIRST_S=0.3, _CPU_SHARE=0.0)
    said: list[str] = []
    read = reader("(?P<n>x*)*y|(a?){22}a{22}b", said)
    for _ in range(10_000):
        read(b"a" * 22 + b"\n")  # each within the bound of a block
        if said:
            return
    raise AssertionError("it goes on")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("(?P<a>", "is no regular expression: missing"),
        ("loss (.*)", "needs a named group"),
        ("(?P<step>.)", "needs a"),
    ],
)
def test_what_can_never_give_a_metric_is_refused_at_submit(wrong: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        checked_spec({"script": "a.py", "metrics": wrong})
