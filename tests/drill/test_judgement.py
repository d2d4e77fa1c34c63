"""The verdict about one fault."""

from client_lib.drill import report
from client_lib.drill.faults import Fault
from client_lib.drill.judgement import (
    DrillVerdict,
    Episode,
    Files,
    Result,
    Seen,
    Tensors,
    Whole,
    judge,
    shared_saves,
)
from client_lib.drill.report import DrillReport
from client_lib.drill.values import Curves, Key, Points
from tests.drill.test_restored import resumed, steps

LOSSES = {float(number): 10.0 / number for number in range(1, 21)}


def curves(values: dict[float, float]) -> Curves:
    return {Key("loss", 0): Points("step", values)}


def seen(begin: int = 0, end: int = 20, **more: object) -> Seen:
    """A run of the steps from `begin` on, which goes as it should."""
    losses = {step: LOSSES[step] for step in LOSSES if begin < step <= end}
    made = Seen("train-1", True, float(end - begin), curves(losses), steps(begin, end))
    return made._replace(**more)  # type: ignore[arg-type]


UNDISTURBED = Whole(seen(), seen(), Tensors(compared=4))
INTERRUPTED = seen(0, 9, succeeded=False)
SAVED = Files("last.pt")


def episode(run: Seen, fault: Fault = Fault.KILL, **more: object) -> Episode:
    made = Episode(fault, INTERRUPTED, run, SAVED, Tensors(compared=4))
    return made._replace(**more)  # type: ignore[arg-type]


def whats(result: Result) -> list[str]:
    return [finding.what for finding in result.findings]


def test_a_run_that_goes_on_as_before_is_as_undisturbed() -> None:
    found = judge(episode(seen(6)), UNDISTURBED)
    assert (found.verdict, found.steps_lost, found.lost_s) == (DrillVerdict.SAME, 3, 3.0)
    assert not found.findings


def test_a_lost_part_is_named_with_the_first_value_that_differs() -> None:
    run = seen(6, steps=resumed(state=200), curves=curves({7: LOSSES[7], 8: 5.0}))
    found = judge(episode(run), UNDISTURBED)
    assert (found.verdict, whats(found)) == (DrillVerdict.DIFFERS, ["optimizer state"])
    assert found.difference
    assert (found.difference.step, found.difference.value) == (8, 5.0)


def test_a_run_that_starts_from_the_beginning_was_not_resumed() -> None:
    found = judge(episode(seen()), UNDISTURBED)
    assert (found.verdict, whats(found)) == (DrillVerdict.NOT_RESUMED, ["nothing is resumed"])
    assert found.steps_lost == 9


def test_a_script_that_saves_nothing_is_told_so() -> None:
    found = judge(episode(seen(), files=Files()), UNDISTURBED)
    assert (found.verdict, whats(found)) == (DrillVerdict.NOT_RESUMED, ["nothing is saved"])


def test_without_records_the_printed_steps_tell_that_nothing_was_resumed() -> None:
    bare = Whole(seen(steps=[]), seen(steps=[]), Tensors())
    found = judge(episode(seen(steps=[]), tensors=Tensors()), bare)
    assert (found.verdict, whats(found)) == (DrillVerdict.NOT_RESUMED, ["nothing is resumed"])
    found = judge(episode(seen(6, steps=[]), tensors=Tensors()), bare)
    assert (found.verdict, found.steps_lost) == (DrillVerdict.SAME, 3)


def test_a_failed_run_has_its_reason() -> None:
    run = seen(6, succeeded=False, why="EOFError: Ran out of input")
    found = judge(episode(run), UNDISTURBED)
    assert (found.verdict, whats(found)) == (DrillVerdict.FAILED, ["did not end well"])
    assert "EOFError" in found.findings[0].sentence


def test_a_torn_checkpoint_is_the_fault_of_a_save_that_is_not_atomic() -> None:
    torn = Files("last.pt", cut="last.pt")
    anew = judge(episode(seen(), Fault.SAVE, files=torn), UNDISTURBED)
    assert (anew.verdict, whats(anew)) == (DrillVerdict.NOT_RESUMED, ["save is not atomic"])
    failed = judge(episode(seen(succeeded=False), Fault.SAVE, files=torn), UNDISTURBED)
    assert whats(failed) == ["save is not atomic", "did not end well"]
    earlier = judge(episode(seen(3), Fault.SAVE, files=torn), UNDISTURBED)
    assert (earlier.verdict, earlier.steps_lost) == (DrillVerdict.SAME, 6)


def test_the_only_checkpoint_may_be_damaged_by_the_drill_alone() -> None:
    only = Files("last.pt", cut="last.pt")
    found = judge(episode(seen(), Fault.DAMAGED, files=only), UNDISTURBED)
    assert found.verdict is DrillVerdict.SAME
    assert "only checkpoint" in found.notes[0]
    none = judge(episode(seen(), Fault.DAMAGED, files=Files()), UNDISTURBED)
    assert (none.verdict, whats(none)) == (DrillVerdict.NOT_RESUMED, ["nothing is saved"])
    several = only._replace(others=2)
    found = judge(episode(seen(), Fault.DAMAGED, files=several), UNDISTURBED)
    assert found.verdict is DrillVerdict.NOT_RESUMED


def test_nothing_saved_at_sigterm_is_a_note() -> None:
    late = Files("last.pt", saved_at_signal=False)
    found = judge(episode(seen(6), Fault.TERM, files=late), UNDISTURBED)
    assert found.verdict is DrillVerdict.SAME
    assert "SIGTERM" in found.notes[0]


def test_equal_tensors_outweigh_a_metric_that_averages_what_was_printed() -> None:
    run = seen(6, curves=curves({8: 5.0}))
    assert judge(episode(run), UNDISTURBED).verdict is DrillVerdict.SAME
    without = episode(run, tensors=Tensors())
    assert judge(without, UNDISTURBED).verdict is DrillVerdict.DIFFERS


def test_tensors_that_differ_are_named() -> None:
    tensors = Tensors(4, 1, [("last.pt.model.0.running_mean", 0.25)])
    found = judge(episode(seen(6), tensors=tensors), UNDISTURBED)
    assert (found.verdict, whats(found)) == (DrillVerdict.DIFFERS, ["final state"])
    assert "running_mean by 0.25" in found.findings[0].sentence


def test_a_noisy_script_differs_within_its_noise() -> None:
    noise = {step: value + 0.1 for step, value in LOSSES.items()}
    whole = Whole(seen(), seen(curves=curves(noise)), Tensors(4, 4, [("w", 0.1)]))
    tensors = Tensors(4, 4, [("w", 0.2)])
    near = {step: value + 0.2 for step, value in LOSSES.items() if step > 6}
    found = judge(episode(seen(6, curves=curves(near)), tensors=tensors), whole)
    assert found.verdict is DrillVerdict.NOISE
    far = {step: value + 2.0 for step, value in LOSSES.items() if step > 6}
    found = judge(episode(seen(6, curves=curves(far)), tensors=tensors), whole)
    assert found.verdict is DrillVerdict.DIFFERS


def test_a_frozen_rank_is_compared_as_a_whole_run() -> None:
    whole = Episode(Fault.FROZEN, None, seen(seconds=25.0), Files(), Tensors(compared=4))
    found = judge(whole, UNDISTURBED)
    assert (found.verdict, found.steps_lost, found.lost_s) == (DrillVerdict.SAME, 0, 5.0)


def test_a_path_to_which_several_ranks_save_is_a_finding() -> None:
    found = shared_saves([frozenset({"/a/last.pt", "/a/0.pt"}), frozenset({"/a/last.pt"})])
    assert [finding.what for finding in found] == ["every rank saves"]
    assert "2 ranks save to /a/last.pt" in found[0].sentence


def test_the_report_tells_of_a_write_elsewhere_first_and_ends_with_the_verdict() -> None:
    good = judge(episode(seen(6)), UNDISTURBED)
    bad = judge(episode(seen(6, steps=resumed(state=200))), UNDISTURBED)
    skipped = Result(
        Fault.DISK, DrillVerdict.NOT_RUN, notes=["only root may mount a small file system"]
    )
    fine = DrillReport("train.py", 5.0, True, [good, skipped], outside=["/home/me/x"])
    assert report.outside(fine) == [
        "The script has written outside of the drill's folders: /home/me/x"
    ]
    assert fine.resumes
    assert report.verdict(fine) == "train.py resumes after each of 1 faults"
    found = fine._replace(results=[good, bad, skipped])
    assert not found.resumes
    assert "does not resume as it should after 1 of 2 faults" in report.verdict(found)
    assert report.rows(found)[1][:4] == ["all ranks killed", "differs", "3", "3.0 s"]
    data = report.as_data(found)
    assert [each["fault"] for each in data["faults"]] == ["kill", "kill", "disk"]
    assert data["faults"][1]["findings"][0]["what"] == "optimizer state"
