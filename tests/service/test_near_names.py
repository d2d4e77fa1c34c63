"""Names that a mistyped name may mean."""

import time

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.command_line import NAME_MAX
from server_stub.service.near_names import near_names
from tests.kit.loop_blocks import BLOCK_S

SWEEP = [f"resnet-of-imagenet-with-a-learning-rate-{number:05d}" for number in range(1000)]


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("trian-1", ["other", "train-1"], ["train-1"]),
        ("trane", ["train"], ["train"]),
        ("train", ["train-x7k2m"], ["train-x7k2m"]),
        ("tran-x7k2n", ["train-x7k2m", "eval-x7k2m-2"], ["train-x7k2m"]),
        ("zebra", ["train"], []),
        ("train", [], []),
    ],
)
def test_the_nearest_are_told(typed: str, known: list[str], meant: list[str]) -> None:
    assert near_names(typed, known) == meant


@pytest.mark.parametrize(
    ("typed", "known"),
    [
        ("resnet-of-imagenet-with-a-learning-rate-9999x", SWEEP),
        ("ab" * (NAME_MAX // 2), [f"{number:050b}".replace("0", "a") for number in range(1000)]),
        ("a" * 60_000, SWEEP),
    ],
)
def test_a_thousand_names_do_not_stop_the_event_loop(typed: str, known: list[str]) -> None:
    began = time.thread_time()
    near_names(typed, known)
    assert time.thread_time() - began < BLOCK_S


@given(
    st.text("ab-1", min_size=6, max_size=NAME_MAX),
    st.integers(min_value=0),
    st.lists(st.text("xyz", max_size=NAME_MAX)),
)
def test_a_name_that_lacks_one_character_is_found(name: str, at: int, others: list[str]) -> None:
    at %= len(name)
    assert name in near_names(name[:at] + name[at + 1 :], [*others, name])
