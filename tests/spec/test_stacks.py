"""Stacks as text of faulthandler, as models, and as lines for people."""

import string

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.stacks import (
    Frame,
    ProcessStacks,
    RankStacks,
    ThreadStack,
    call as called,
    details,
    groups,
    parse,
    place,
    read_process,
)

DUMP = """\
Thread 0x00007f92ef000000 [pin memory] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f92efa8cb80 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d.py", line 2806 in all_reduce
  File "/home/me/train.py", line 41 in step
  File "/home/me/train.py", line 50 in <module>
  File "/state/jobs/1/worker-0/rank_runner.py", line 150 in _run
  File "/state/jobs/1/worker-0/rank_runner.py", line 56 in main
"""


def test_a_dump_is_read() -> None:
    helper, main = parse(DUMP)
    assert (helper.name, helper.main, main.main) == ("pin memory", False, True)
    assert main.frames == [
        Frame(
            function="all_reduce",
            file="/env/lib/python3.11/site-packages/torch/distributed/c10d.py",
            line=2806,
        ),
        Frame(function="step", file="/home/me/train.py", line=41),
        Frame(function="<module>", file="/home/me/train.py", line=50),
    ]


@pytest.mark.parametrize(
    "runner", ["/state/rank_runner.py", "/c/client_lib/worker/rank_runner/main.py"]
)
def test_frames_of_a_warm_pool_and_of_a_function_are_left_out(runner: str) -> None:
    names = [
        "work (/me/f.py)",
        "call (/c/function_runner.py)",
        f"_run ({runner})",
        "<module> (/c/__main__.py)",
    ]
    lines = [f'  File "{name.split("(")[1][:-1]}", line 1 in {name.split()[0]}' for name in names]
    (thread,) = parse("\n".join(["Current thread 0x1 (most recent call first):", *lines]))
    assert [frame.function for frame in thread.frames] == ["work"]


@pytest.mark.parametrize(
    "file", ["/state/rank_runner.py", "/c/client_lib/worker/rank_runner/collectives.py"]
)
def test_a_thread_of_the_runner_is_left_out(file: str) -> None:
    own = f'Thread 0x2 (most recent call first):\n  File "{file}", line 450 in run\n\n'
    assert parse(own + DUMP) == parse(DUMP)


def test_a_function_that_the_runner_wraps_is_no_code_of_the_user() -> None:
    waits = process(
        ("create_connection", "/usr/lib/python3.11/socket.py", 827),
        ("wait_for_master", "/state/rank_runner.py", 550),
        ("init_process_group", "/state/rank_runner.py", 580),
        ("<module>", "/me/train.py", 3),
    )
    assert place(waits) == "create_connection <- <module> (train.py:3)"
    assert str(called(waits)) == "init_process_group (train.py:3)"


def process(*frames: tuple[str, str, int], pid: int = 1) -> ProcessStacks:
    made = [Frame(function=function, file=file, line=line) for function, file, line in frames]
    return ProcessStacks(
        pid=pid,
        name="python",
        state="sleeping",
        threads=[ThreadStack(id="0x1", main=True, frames=made)],
    )


REDUCES = process(("all_reduce", "/e/site-packages/torch/c10d.py", 9), ("step", "/me/train.py", 41))
LOADS = process(
    ("load", "/me/data.py", 12), ("epoch", "/me/train.py", 30), ("<module>", "/me/train.py", 80)
)
FETCHES = process(("recv", "/usr/lib/python3.11/connection.py", 1), ("fetch", "/me/data.py", 9))


def test_ranks_with_the_same_stack_are_one_group() -> None:
    ranks = [
        RankStacks(rank=n, worker=0, processes=[LOADS if n == 1 else REDUCES]) for n in range(8)
    ]
    assert groups(ranks) == [
        "ranks 0, 2-7: all_reduce <- step (train.py:41)",
        "rank 1: load (data.py:12) <- epoch (train.py:30)",
    ]


def test_children_are_groups_of_their_own() -> None:
    ranks = [RankStacks(rank=n, worker=0, processes=[REDUCES, FETCHES, FETCHES]) for n in range(2)]
    assert groups(ranks)[1:] == ["4 child processes of ranks 0-1: recv <- fetch (data.py:9)"]


def test_a_forked_child_is_not_where_it_was_forked() -> None:
    worker = process(
        ("select", "/usr/lib/python3.11/selectors.py", 415),
        ("_worker_loop", "/e/site-packages/torch/worker.py", 335),
        ("run", "/usr/lib/python3.11/multiprocessing/process.py", 108),
        ("_bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
        ("main", "/me/train.py", 13),
    )
    assert place(worker) == "select <- _worker_loop (worker.py:335)"


def test_a_process_without_a_stack_is_described() -> None:
    sent = {
        "pid": 7,
        "name": "prog",
        "state": "D",
        "wchan": "nfs_wait",
        "cpu_s": 1.5,
        "dump": None,
        "why": "no handler",
    }
    rank = RankStacks(rank=3, worker=0, processes=[read_process(sent)])
    what = "prog is waiting for a disk or a device in nfs_wait, without a stack: no handler"
    assert groups([rank]) == [f"rank 3: {what}"]
    assert (
        details(rank)[0]
        == "rank 3, process 7 (prog): waiting for a disk or a device in nfs_wait, 1.50 s of CPU"
    )


def test_details_show_the_main_thread_first() -> None:
    rank = RankStacks(
        rank=0,
        worker=0,
        processes=[read_process({"pid": 7, "name": "python", "state": "S", "dump": DUMP})],
    )
    lines = details(rank)
    assert lines[1:3] == [
        "  main thread 0x00007f92efa8cb80",
        "    all_reduce (/env/lib/python3.11/site-packages/torch/distributed/c10d.py:2806)",
    ]
    assert lines[-2:] == [
        "  thread 0x00007f92ef000000 pin memory",
        "    wait (/usr/lib/python3.11/threading.py:324)",
    ]


_NAMES = st.text(string.ascii_letters + "_<>0", min_size=1, max_size=8)
_FRAMES = st.builds(
    Frame,
    function=_NAMES,
    file=_NAMES.map("/me/{}.py".format),
    line=st.one_of(st.none(), st.integers(0, 9999)),
)
_THREADS = st.builds(
    ThreadStack,
    id=st.integers(0, 2**64 - 1).map("0x{:016x}".format),
    name=st.one_of(st.none(), _NAMES),
    main=st.booleans(),
    frames=st.lists(_FRAMES, max_size=5),
)


def written(threads: list[ThreadStack]) -> str:
    """The threads in the format of faulthandler."""
    lines = []
    for thread in threads:
        kind, name = (
            "Current thread" if thread.main else "Thread",
            f" [{thread.name}]" if thread.name else "",
        )
        lines.append(f"{kind} {thread.id}{name} (most recent call first):")
        for frame in thread.frames:
            line = "???" if frame.line is None else frame.line
            lines.append(f'  File "{frame.file}", line {line} in {frame.function}')
        lines += ["  <no Python frame>"] if not thread.frames else ["  ..."]
        lines.append("")
    return "\n".join(lines)


@given(st.lists(_THREADS, max_size=4))
def test_what_was_written_is_read(threads: list[ThreadStack]) -> None:
    assert parse(written(threads)) == threads


@given(st.text(), st.lists(_THREADS, max_size=2))
def test_no_text_is_refused(noise: str, threads: list[ThreadStack]) -> None:
    parse(noise + written(threads) + noise)
    parse(written(threads)[: len(noise)])


@given(st.lists(st.sampled_from([REDUCES, LOADS, FETCHES]), max_size=12))
def test_each_rank_is_in_one_group(processes: list[ProcessStacks]) -> None:
    ranks = [RankStacks(rank=n, worker=0, processes=[each]) for n, each in enumerate(processes)]
    lines = groups(ranks)
    assert len(lines) == len({id(each) for each in processes})
    assert sorted(n for line in lines for n in _numbers(line)) == list(range(len(processes)))


def _numbers(line: str) -> list[int]:
    spans = line.partition(": ")[0].split(" ", 1)[1].split(", ")
    return [
        n for span in spans for n in range(int(span.split("-")[0]), int(span.split("-")[-1]) + 1)
    ]
