"""What one user asks for keeps no other user waiting."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests

from client_lib.spec import paths
from tests.http.conftest import Api

ANSWERED_S = 1.0
"""Longest time until another user has an answer."""
WIDE = "[!-\U0010ffff]"
"""Without regard to case, `re` takes 10 ms to compile each of these."""
SLOW = {"in a row": "(?i)" + WIDE * 60, "alternatives": "(?i:" + "|".join([WIDE] * 60) + ")"}


@contextmanager
def others_are_answered(other: Api) -> Iterator[None]:
    """Fails if the server leaves another user without an answer while the body runs."""
    took: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            began = time.monotonic()
            assert other("GET", paths.READYZ).status_code == 200
            assert other("GET", paths.JOBS).status_code == 200
            took.append(time.monotonic() - began)
            ended.wait(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
    assert took
    assert max(took) < ANSWERED_S


def at_once(count: int, call: Callable[[], requests.Response]) -> list[requests.Response]:
    """The answers of calls at the same time."""
    answers: list[requests.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == count
    return answers


@pytest.mark.parametrize("expression", SLOW.values(), ids=SLOW)
def test_an_expression_to_search_for_is_not_compiled_by_the_server(
    ann: Api, ben: Api, expression: str
) -> None:
    ann.submit(name="here")
    path = paths.job("here", "logs")
    with others_are_answered(ben):
        answers = at_once(
            4, lambda: Api(ann.url, ann.token)("GET", path, params={"grep": expression})
        )
    assert {answer.status_code for answer in answers} <= {200, 422}
    assert ben("GET", path, params={"grep": expression}).status_code == 404


@pytest.mark.parametrize(
    "expression",
    ["(?i)(?P<loss>x)" + WIDE * 285, "(?P<loss>x)(?i:(" + ")|(".join([WIDE] * 200) + "))"],
    ids=["in a row", "groups"],
)
def test_an_expression_for_metrics_is_not_compiled_by_the_server(
    ann: Api, ben: Api, expression: str
) -> None:
    with others_are_answered(ben):
        [slow] = at_once(1, lambda: Api(ann.url, ann.token).submit(metrics=expression))
    assert slow.status_code == 422
    assert "takes longer than 1 s to compile" in slow.json()["message"]
    assert ann("GET", paths.JOBS).json()["jobs"] == []
