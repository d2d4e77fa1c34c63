"""The agent of an elastic worker: torchrun's options, and that it is the only
process the launcher starts.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.rank_processes import agent_arguments
from client_lib.worker.preparation import prepare
from client_lib.worker.rank_end import failed_below
from client_lib.worker.warm.fit import PoolState, refusal
from tests.kit.processes import free_port
from tests.worker.conftest import Worker

Make = Callable[..., Worker]


@pytest.fixture
def elastic(worker: Make) -> Callable[..., Worker]:
    return lambda **fields: worker("pass", **({"type": "pytorch_elastic"} | fields))


def test_the_options_of_a_second_worker(elastic: Make) -> None:
    plan = elastic(
        worker=1, n_workers=3, processes_per_worker=2, elastic_min_workers=2, elastic_max_restarts=7
    ).plan
    assert agent_arguments(plan) == [
        "-m",
        "torch.distributed.run",
        "--nnodes=2:3",
        "--nproc_per_node=2",
        "--max_restarts=7",
        "--rdzv_id=job-1-1",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=127.0.0.1:2999",
        "--rdzv_conf=is_host=false,join_timeout=1200,last_call_timeout=90,read_timeout=90",
        "--redirects=9:3",
        "--tee=9:3",
        "--local_addr=127.0.0.1",
    ]


def test_worker_0_holds_the_rendezvous_and_all_workers_are_needed_unless_told_otherwise(
    elastic: Make,
) -> None:
    options = agent_arguments(elastic(n_workers=3).plan)
    assert "--nnodes=3:3" in options
    assert any(option.startswith("--rdzv_conf=is_host=true") for option in options)


def test_beyond_one_machine_an_agent_finds_its_address_itself(elastic: Make) -> None:
    assert not [
        o
        for o in agent_arguments(elastic(master_addr="job-1-worker-0").plan)
        if o.startswith("--local_addr")
    ]


def test_a_worker_starts_one_agent_for_all_its_ranks(elastic: Make) -> None:
    one = elastic(processes_per_worker=4)
    (process,) = prepare(one.plan, Directory(one.directory.path))
    assert process.argv[:-2] == [one.plan.python, *agent_arguments(one.plan)]
    assert [Path(word).name for word in process.argv[-2:]] == ["rank_runner.py", "train.py"]


@pytest.mark.process
def test_a_rank_s_exception_is_in_the_report_and_it_was_started_anew(worker: Make) -> None:
    script = """
        import os
        print("round", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        raise KeyError("learning_rate")
    """
    one = worker(script, type="pytorch_elastic", elastic_max_restarts=1, master_port=free_port())
    report = one.start().go().report(60)
    assert [line for line in one.lines() if line.startswith("round")] == ["round 0", "round 1"]
    assert report["exit_code"] == 1
    assert "KeyError: 'learning_rate'" in report["ranks"][0]["exception"]


@pytest.mark.process
def test_the_rank_that_failed_is_named_as_the_agents_have_numbered_it(worker: Make) -> None:
    script = """
        import os, sys, time
        if os.environ["RANK"] == "0":
            time.sleep(600)
        print("last words of 1", flush=True)
        sys.exit(5)
    """
    one = worker(
        script,
        type="pytorch_elastic",
        processes_per_worker=2,
        elastic_max_restarts=0,
        master_port=free_port(),
    )
    report = one.start().go().report(60)
    assert (report["first_failing_rank"], [rank["rank"] for rank in report["ranks"]]) == (1, [1])
    assert report["message"].startswith("rank 1 ended with exit code 1")
    assert "last words of 1" in report["ranks"][0]["last_lines"]


@pytest.mark.parametrize(
    ("error_file", "said", "rank"),
    [
        ('{"message": {"message": "ValueError: x", "extraInfo": {"rank": "3"}}}', [], 3),
        ('{"message": {"message": "ValueError: x", "extraInfo": {"rank": ""}}}', [], 0),
        ('{"message": "a bare one"}', ["Other Failures:", "  rank      : 7 (local_rank: 1)"], 0),
        (
            None,
            [
                "  rank      : 7 (local_rank: 1)",
                "Root Cause (first):",
                "[0]:",
                "  rank      : 4 (local_rank: 0)",
            ],
            4,
        ),
    ],
)
def test_an_agent_says_which_rank_failed(
    error_file: str | None, said: list[str], rank: int, tmp_path: Path
) -> None:
    if error_file:
        (tmp_path / "0.json").write_text(error_file)
    assert failed_below(str(tmp_path / "0.json"), said, 0) == rank


@pytest.mark.process
def test_the_lines_of_its_ranks_carry_their_ranks(worker: Make) -> None:
    script = """
        import os, pathlib, subprocess, sys, time
        rank, restart = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("out", rank, flush=True)
        subprocess.run([sys.executable, "-c", f"print('child', {rank})"], check=True)
        marks = pathlib.Path(__file__).parent
        (marks / f"printed-{restart}-{rank}").touch()
        # the agent stops the other rank when one fails
        while len(list(marks.glob(f"printed-{restart}-*"))) < 2:
            time.sleep(0.01)
        sys.exit(f"err {rank}" if restart == "0" else 0)
    """
    port = free_port()
    one = worker(
        script,
        type="pytorch_elastic",
        processes_per_worker=2,
        elastic_max_restarts=1,
        master_port=port,
    )
    assert one.start().go().report(100)["exit_code"] == 0
    own = [record for record in one.records() if record.text.startswith(("out", "child"))]
    assert sorted((record.text, record.rank) for record in own) == sorted(
        (f"{word} {rank}", rank) for word in ("out", "child") for rank in range(2) for _ in range(2)
    )
    errors = [record for record in one.records() if record.text.startswith("err")]
    assert errors  # an agent stops the other rank as soon as one has failed
    assert all(
        (record.stream, record.text) == ("stderr", f"err {record.rank}") for record in errors
    )


def test_its_agent_is_never_forked_from_a_warm_pool(elastic: Make) -> None:
    one = elastic()
    (process,) = prepare(one.plan, Directory(one.directory.path))
    pool = PoolState(str(one.plan.python), {}, frozenset())
    assert refusal(pool, one.plan, process, []) == "torchrun starts its ranks"
