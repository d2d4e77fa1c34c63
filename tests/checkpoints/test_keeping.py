"""Which checkpoints a job no longer needs."""

from __future__ import annotations

from hypothesis import given, strategies as st

from client_lib.checkpoints import Checkpoint, surplus


def checkpoint(
    path: str, step: int | None, *, missing: str = "", pointers: tuple[str, ...] = ()
) -> Checkpoint:
    return Checkpoint(path, "torch", step, 10, float(step or 0), missing, bool(missing), pointers)


FIRST, SECOND, THIRD = (checkpoint(f"step-{step}.pt", step) for step in (1, 2, 3))


def test_the_last_steps_stay() -> None:
    assert surplus([THIRD, FIRST, SECOND], 2) == [FIRST]
    assert surplus([THIRD, FIRST, SECOND], 1) == [FIRST, SECOND]
    assert surplus([THIRD, FIRST, SECOND], 3) == []


def test_only_complete_ones_count() -> None:
    cut = checkpoint("step-4.pt", 4, missing="cut off")
    assert surplus([FIRST, SECOND, cut], 2) == []
    old_cut = checkpoint("step-0.pt", 0, missing="cut off")
    assert surplus([old_cut, FIRST, SECOND, THIRD], 2) == [FIRST]


def test_what_has_no_step_stays_and_takes_no_place() -> None:
    best = checkpoint("best.pt", None)
    assert surplus([best, FIRST, SECOND, THIRD], 2) == [FIRST]


def test_what_a_pointer_names_stays() -> None:
    named = checkpoint("step-1.pt", 1, pointers=("latest",))
    assert surplus([named, SECOND, THIRD], 1) == [SECOND]


def test_the_folder_itself_stays() -> None:
    whole = checkpoint(".", 1)
    assert surplus([whole, SECOND, THIRD], 1) == [SECOND]


def test_a_folder_with_another_checkpoint_in_it_stays() -> None:
    """A final model beside the checkpoints of its run."""
    models = [checkpoint(f"model-{number}", number) for number in (1, 2)]
    assert surplus([*models, checkpoint("model-1/checkpoint-500", 500)], 1) == []
    damaged = checkpoint("model-1/epochs/checkpoint-500", 500, missing="cut off")
    assert surplus([*models, damaged], 1) == []
    assert surplus([*models, checkpoint("model-10/checkpoint-500", 500)], 1) == [models[0]]


def test_files_of_one_step_stay_or_go_together() -> None:
    others = [checkpoint(f"optimizer-{step}.pt", step) for step in (1, 2, 3)]
    gone = surplus([FIRST, SECOND, THIRD, *others], 2)
    assert {each.path for each in gone} == {"step-1.pt", "optimizer-1.pt"}


def test_each_folder_keeps_its_own() -> None:
    others = [checkpoint(f"run-2/step-{step}.pt", step) for step in (8, 9)]
    assert surplus([FIRST, SECOND, *others], 1) == [FIRST, others[0]]


@given(
    st.lists(
        st.builds(
            checkpoint,
            st.sampled_from(["a", "b/c", "b/d"]),
            st.none() | st.integers(0, 20),
            missing=st.sampled_from(["", "", "cut off"]),
            pointers=st.sampled_from([(), (), ("latest",)]),
        ),
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_the_newest_complete_one_never_goes(found: list[Checkpoint], keep: int) -> None:
    gone = surplus(found, keep)
    assert all(not each.missing and each.step is not None and not each.pointers for each in gone)
    steps = [each.step for each in found if not each.missing and each.step is not None]
    assert not gone or max(each.step or 0 for each in gone) < max(steps)
