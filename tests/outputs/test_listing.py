"""What is listed of the outputs of several workers and attempts."""

from pathlib import Path

from hypothesis import given, strategies as st

from client_lib.launcher_protocol.output_store import INDEX, Index, Kept, LeftOut
from server_stub.files.outputs import OUTPUTS, conflict_notes, listing, merged
from tests.kit.worker_reports import report

Found = dict[tuple[int, int], Index]

REPORTS = [report(worker, outputs={"kept": 1}) for worker in range(2)]


def index(*left: LeftOut, **files: str) -> Index:
    """`name=text`: the text stands for the digest."""
    return Index(
        {name: Kept(name, len(text), text, 1.0, False) for name, text in files.items()},
        {one.path: one for one in left},
    )


def stored(job_dir: Path, found: Found) -> Path:
    for (attempt, worker), one in found.items():
        folder = job_dir / OUTPUTS / f"{attempt}.{worker}"
        folder.mkdir(parents=True)
        (folder / INDEX).write_bytes(one.text())
    return job_dir


def listed(found: Found) -> dict[str, tuple[str, int, int]]:
    return {file.path: (file.sha256, file.attempt, file.worker) for file in merged(found)[0]}


def test_the_newest_attempt_counts_and_what_it_has_not_stays() -> None:
    found = {(1, 0): index(model="old", log="1"), (2, 0): index(model="new")}
    assert listed(found) == {"model": ("new", 2, 0), "log": ("1", 1, 0)}


def test_the_same_file_of_several_workers_is_one() -> None:
    found = {(1, 0): index(config="c"), (1, 1): index(config="c", shard="1")}
    assert listed(found) == {"config": ("c", 1, 0), "shard": ("1", 1, 1)}
    assert merged(found)[2] == []


def test_different_files_of_one_name_are_kept_apart_and_said(tmp_path: Path) -> None:
    found = {(1, 0): index(log="a"), (1, 1): index(log="b"), (1, 2): index(log="c")}
    assert listed(found) == {
        "log": ("a", 1, 0),
        "worker-1/log": ("b", 1, 1),
        "worker-2/log": ("c", 1, 2),
    }
    (said,) = conflict_notes(stored(tmp_path, found), REPORTS)
    assert said == (
        "workers wrote different outputs of one name; they are kept apart, as worker-1/log, "
        "worker-2/log"
    )


def test_folders_that_a_script_made_for_its_workers_are_no_conflict(tmp_path: Path) -> None:
    found = {(1, worker): index(**{f"worker-{worker}/log": str(worker)}) for worker in range(2)}
    assert conflict_notes(stored(tmp_path, found), REPORTS) == ()


def test_a_time_that_no_datetime_holds_hides_no_file(tmp_path: Path) -> None:
    times = {"past": -1e11, "future": 1e12, "none": float("nan"), "usual": 1e9}
    kept = {name: Kept(name, 1, name, mtime, False) for name, mtime in times.items()}
    files, _ = listing(stored(tmp_path, {(1, 0): Index(kept, {})}))
    assert {file.path: file.modified_at.year for file in files} == {
        "past": 1970,
        "future": 5138,
        "none": 1970,
        "usual": 2001,
    }


def test_a_name_that_a_script_gave_itself_is_not_taken() -> None:
    found = {
        (1, 0): Index(
            {**index(log="a").kept, "worker-1/log": Kept("worker-1/log", 1, "x", 1.0, False)}, {}
        )
    }
    found[1, 1] = index(log="b")
    assert listed(found)["worker-1/log_"] == ("b", 1, 1)
    assert listed(found)["worker-1/log"] == ("x", 1, 0)


def test_what_is_left_out_is_listed_once_per_worker() -> None:
    left = LeftOut("huge", 9, "too large")
    _, out, _ = merged({(1, 0): index(left), (2, 0): index(left), (1, 1): index(left)})
    assert [(one.path, one.worker, one.why) for one in out] == [
        ("huge", 0, "too large"),
        ("huge", 1, "too large"),
    ]


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 3), st.integers(0, 3)),
        st.dictionaries(
            st.sampled_from(["a", "b", "worker-1/a", "worker-1/a_"]), st.sampled_from("xyz")
        ),
    )
)
def test_no_bytes_are_lost_and_no_name_is_given_twice(
    files: dict[tuple[int, int], dict[str, str]],
) -> None:
    found = {origin: index(**of_worker) for origin, of_worker in files.items()}
    names = [file.path for file in merged(found)[0]]
    assert len(names) == len(set(names))
    newest = {
        (worker, name): text
        for (_, worker), of in sorted(files.items())
        for name, text in of.items()
    }
    assert {file.sha256 for file in merged(found)[0]} == set(newest.values())
