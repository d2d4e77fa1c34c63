"""The transition table: complete, and final states are final."""

import pytest

from client_lib.spec.states import (
    FINAL,
    RENAMED,
    TRANSITIONS,
    IllegalTransition,
    Reason,
    State,
    as_sent,
    check_transition,
)
from client_lib.spec.wire import Event


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


def test_nothing_leaves_a_final_state() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == FINAL


def test_every_state_can_be_reached_from_pending() -> None:
    reached, todo = {State.PENDING}, [State.PENDING]
    while todo:
        new = TRANSITIONS[todo.pop()] - reached
        reached |= new
        todo += new
    assert reached == set(State)


def test_every_living_state_can_fail_and_be_cancelled() -> None:
    for state in set(State) - FINAL:
        check_transition(state, State.FAILED)
        check_transition(state, State.CANCELLED)


def test_an_illegal_step_is_refused_with_both_states_named() -> None:
    with pytest.raises(IllegalTransition, match="SUCCEEDED can't become RUNNING"):
        check_transition(State.SUCCEEDED, State.RUNNING)


def test_states_print_as_their_value() -> None:
    assert f"{State.RUNNING}" == "RUNNING"


def test_a_word_of_an_earlier_version_is_read_as_the_word_of_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the table is empty until a word is renamed
    monkeypatch.setitem(RENAMED, ("Reason", "DeadlineExceeded"), "Timeout")
    assert Reason("DeadlineExceeded") is Reason.TIMEOUT
    assert as_sent(Reason, "DeadlineExceeded") is Reason.TIMEOUT
    event = {"time": "2026-01-01T00:00:00Z", "attempt": 1, "state": "FAILED", "message": ""}
    assert Event.model_validate(event | {"reason": "DeadlineExceeded"}).reason is Reason.TIMEOUT


def test_the_words_of_earlier_versions_mean_words_of_today() -> None:
    kinds: dict[str, type[State] | type[Reason]] = {"State": State, "Reason": Reason}
    for (kind, former), word in RENAMED.items():
        assert former not in [str(member) for member in kinds[kind]]
        assert word in [str(member) for member in kinds[kind]]
