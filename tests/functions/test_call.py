"""The call of a function job, as people read it."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib import InvalidRequest, Job
from client_lib.functions.call import call_of


def train(*args: Any, rank: int = 0, **kwargs: Any) -> None: ...


def by_place(rank: int, lr: float) -> None: ...


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no text")


class Long:
    def __repr__(self) -> str:
        return "Long(\n    " + "x" * 1000 + ")"


@pytest.mark.parametrize(
    ("args", "kwargs", "shown"),
    [
        ((), {"lr": 0.0123, "epochs": 3}, ["lr=0.0123", "epochs=3"]),
        (("a b", None), {}, ["'a b'", "None"]),
        ((list(range(100)),), {}, ["[0, 1, 2, 3, 4, 5, ...]"]),
    ],
)
def test_arguments_are_text_that_people_read(
    args: tuple[Any, ...], kwargs: dict[str, Any], shown: list[str]
) -> None:
    job = Job(script=train, args=args, kwargs=kwargs)
    assert (job.spec.script, job.spec.args) == ("train()", shown)


def test_an_argument_that_each_rank_fills_is_left_out() -> None:
    assert call_of(by_place, (0.1,), None).shown == ["0.1"]


def test_a_long_argument_is_cut_and_a_broken_one_does_no_harm() -> None:
    long, broken = call_of(train, (Long(), Broken()), None).shown
    assert (len(long) <= 60, "\n" in long, "..." in long) == (True, False, True)
    assert "Broken" in broken


def test_of_many_arguments_the_first_are_stored() -> None:
    assert call_of(train, range(100), None).shown == [*map(str, range(12)), "…"]


@pytest.mark.parametrize("args", ["0.1", 0.1, 0])
def test_one_argument_without_its_tuple_is_refused(args: Any) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"give the arguments of train as a tuple, \({args!r},\)"
    ):
        Job(script=train, args=args)


@given(
    st.lists(st.one_of(st.text(), st.floats(), st.binary(), st.dictionaries(st.text(), st.text())))
)
def test_any_arguments_make_a_valid_spec(args: list[Any]) -> None:
    assert len(Job(script=train, args=args).spec.args) <= 13
