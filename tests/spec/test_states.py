"""The transition table: complete, and final states are final."""

import pytest

from client_lib.spec.states import FINAL, TRANSITIONS, IllegalTransition, State, check_transition


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
