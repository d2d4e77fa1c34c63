"""Trainings of one worker alone in a job of several workers."""

import sys
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, strategies as st

from client_lib.worker.lone_groups import RankGroup, group_of, is_alone
from tests.worker.conftest import Worker

Make = Callable[..., Worker]

# starts a process as torchrun starts its ranks
LAUNCHER = """
import os, subprocess, sys
given = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}
given |= dict(each.split("=") for each in sys.argv[1:])
sleeps = [sys.executable, "-c", "import time; time.sleep(2)"]
subprocess.run(sleeps, env=os.environ | given, check=True)
"""

counts = st.integers(1, 64)


def encoded(variables: Mapping[str, object]) -> list[bytes]:
    return [f"{name}={value}".encode() for name, value in variables.items()]


@given(counts, counts, st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_a_group_is_read_from_the_variables_of_its_launcher(size: int, here: int, run: str) -> None:
    variables = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": here, "TORCHELASTIC_RUN_ID": run}
    assert group_of(encoded(variables)) == RankGroup(run, size, here)


@given(st.lists(st.binary(max_size=30)))
def test_any_environment_can_be_read(environment: list[bytes]) -> None:
    group_of([b"WORLD_SIZE=1", b"LOCAL_WORLD_SIZE=1", *environment])


@given(counts, counts, st.integers(2, 8))
def test_a_group_of_several_workers_is_not_alone(size: int, here: int, n_workers: int) -> None:
    assert not is_alone(RankGroup("", here * n_workers, here), n_workers)
    assert not is_alone(RankGroup("", size, size), n_workers=1)
    assert is_alone(RankGroup("", size, size), n_workers)


def shell_worker(worker: Make, n_workers: int, variables: str) -> Worker:
    """A worker whose shell runs a launcher with these variables."""
    made = worker(LAUNCHER, n_workers=n_workers, type="binary", python=None)
    line = f"{sys.executable} {made.script} {variables}; true"
    made.give(made.plan._replace(command=["bash", "-c", line]))
    return made


@pytest.mark.process
def test_a_launcher_inside_a_shell_file_that_knows_no_other_worker_is_told(worker: Make) -> None:
    one = shell_worker(worker, 2, "WORLD_SIZE=1 LOCAL_WORLD_SIZE=1")
    (note,) = one.run()["notes"]
    assert "a group of 1, and the job has 2 workers: each worker trains alone" in note
    assert note in one.lines("launcher", rank=None)


@pytest.mark.process
@pytest.mark.parametrize(
    ("n_workers", "variables"),
    [
        (2, "WORLD_SIZE=4 LOCAL_WORLD_SIZE=2"),
        (1, "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2"),
    ],
    ids=["all workers", "a job of one worker"],
)
def test_a_launcher_that_trains_on_all_workers_is_not_told(
    worker: Make, n_workers: int, variables: str
) -> None:
    assert "notes" not in shell_worker(worker, n_workers, variables).run()


OWN_VARIABLE = "import os; os.environ['WORLD_SIZE'] = '1'; os.environ['RANK'] = '0'"
OWN_GROUP = """
import os, torch.distributed as dist
store = "file://" + os.path.abspath("store" + os.environ["RANK"])
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
"""


@pytest.mark.process
@pytest.mark.parametrize("script", [OWN_VARIABLE, OWN_GROUP], ids=["variable", "group"])
def test_a_rank_with_a_world_size_of_its_own_is_named(worker: Make, script: str) -> None:
    one = worker(script, worker=1, n_workers=2, processes_per_worker=2)
    (note,) = one.run()["notes"]
    which, said = note.split(" has ", 1)
    assert which in ("rank 2", "rank 3"), "the one that tells first"
    assert said.startswith("a world size of 1 of its own, and the job has 4 ranks: ")
    assert note in one.lines("launcher", rank=None)


@pytest.mark.process
@pytest.mark.parametrize("size", ["os.environ['WORLD_SIZE']", "'8'", "''"])
def test_a_rank_of_the_whole_job_is_not_named(worker: Make, size: str) -> None:
    script = f"import os; os.environ['WORLD_SIZE'] = {size}"
    assert "notes" not in worker(script, processes_per_worker=2).run()


@pytest.mark.process
def test_a_number_of_ranks_that_nobody_has_is_not_read(worker: Make) -> None:
    one = worker("", n_workers=2)
    one.script.write_text(
        f"open({one.directory.stacks!r} + '/world-0', 'w').write('9' * 5000); print('goes on')"
    )
    assert "notes" not in one.run()
    assert one.lines() == ["goes on"]
