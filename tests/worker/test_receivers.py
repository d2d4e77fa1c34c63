"""Which processes of a rank get the signal that ends it."""

import shlex
import signal
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from client_lib.worker.receivers import Member, receivers
from tests.kit.waiting import until
from tests.worker.conftest import Worker

Make = Callable[..., Worker]

PYTHON = b"/usr/bin/python3.11"
SPAWNED = (PYTHON, b"-c", b"from multiprocessing.spawn import spawn_main; spawn_main()")
KINDS = st.sampled_from(["shell", "program", "python", "fork", "spawn"])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Member], set[int]]:
    """The processes of a group, and those that are, or are below, workers of a Python process."""
    members = [Member(1, 0, b"/bin/bash", (b"bash",), ("1",))]
    workers: set[int] = set()
    for pid in range(2, draw(st.integers(2, 9))):
        parent = draw(st.sampled_from(members))
        kind = draw(KINDS)
        is_python = parent.program == PYTHON
        if kind == "fork":
            member = parent._replace(pid=pid, parent=parent.pid)
        else:
            program = {"shell": b"/bin/sh", "program": b"/bin/tee"}.get(kind, PYTHON)
            argv = SPAWNED if kind == "spawn" else (program,)
            member = Member(pid, parent.pid, program, argv, (str(pid),))
        if parent.pid in workers or (kind in ("fork", "spawn") and is_python):
            workers.add(pid)
        members.append(member)
    return draw(st.permutations(members)), workers


@given(trees())
def test_all_get_it_but_the_workers_of_a_python_process(
    tree: tuple[list[Member], set[int]],
) -> None:
    members, workers = tree
    asked = receivers(members)
    # a fork of a worker has its command line, and is below it
    assert {member.pid for member in members} - set(asked) == workers


def test_a_reader_of_a_pipe_ends_with_its_writers() -> None:
    shell = Member(1, 0, b"bash")
    train = Member(2, 1, PYTHON, writes=frozenset({"pipe:[7]"}))
    tee = Member(3, 1, b"tee", reads=frozenset({"pipe:[7]"}), writes=frozenset({"pipe:[8]"}))
    grep = Member(4, 1, b"grep", reads=frozenset({"pipe:[8]"}))
    assert receivers([shell, train, tee, grep]) == [1, 2]
    assert receivers([tee, grep]) == [3]


def test_parents_in_a_circle_end_the_search() -> None:
    circle = [Member(1, 2, b"sh"), Member(2, 1, b"sh")]
    assert receivers(circle) == [1, 2]


# A training whose loop and whose checkpoint need its workers and its manager, as those of a
# DataLoader do. These were started before the handler, so a SIGTERM would end them.
TRAINING = """
    import multiprocessing, os, signal, time

    def feed(queue):
        while True:
            queue.put(1)

    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        queue = context.Queue(2)
        workers = [context.Process(target=feed, args=(queue,), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        shared = context.Manager().dict()
        asked = []
        signal.signal({signum}, lambda *_: asked.append(1))
        print("started", flush=True)
        while not asked:
            queue.get(timeout=10)
        for step in range(20):
            queue.get(timeout=10)
            shared[step] = step
            time.sleep(0.05)
        alive = all(worker.is_alive() for worker in workers)
        print("saved", len(shared), alive, len(asked), flush=True)
"""
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"
"""Passes no signal on, as `accelerate launch` does for one process."""
COMMANDS = {
    "shell": "{python} {script}; exit $?",
    "exec": "exec {python} {script}",
    "pipe": "{python} {script} | cat",
    "launcher": "{python} -c {launcher} {python} {script}",
    "launcher in a shell": "true; {python} -c {launcher} sh -c '{python} {script}; exit $?'",
}


def saved(one: Worker, order: Callable[[], None]) -> list[str]:
    """The lines that the training prints after the order that ends it."""
    one.start().go()
    one.waits_for("started")
    order()
    report = one.report()
    assert report["reason"] == "Cancelled", one.records()
    return [line for line in one.lines() if line.startswith("saved")]


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_python_rank_saves_with_its_workers(
    worker: Make, method: str, signum: signal.Signals
) -> None:
    one = worker(TRAINING.format(method=method, signum=int(signum)), grace_s=20.0)
    order = {"interrupt": True} if signum == signal.SIGINT else {}
    assert saved(one, lambda: one.stop(20.0, **order)) == ["saved 20 True 1"]


@pytest.mark.process
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_training_below_a_command_saves_with_its_workers(
    worker: Make, name: str, signum: signal.Signals
) -> None:
    method = "spawn" if name == "pipe" else "fork"
    one = worker(TRAINING.format(method=method, signum=int(signum)), grace_s=20.0)
    words = {"python": sys.executable, "script": str(one.script), "launcher": shlex.quote(LAUNCHER)}
    command = ["bash", "-c", COMMANDS[name].format(**words)]
    one.give(one.plan._replace(type="binary", python=None, command=command))
    order = {"interrupt": True} if signum == signal.SIGINT else {}
    assert saved(one, lambda: one.stop(20.0, **order)) == ["saved 20 True 1"]


@pytest.mark.process
def test_the_children_of_a_python_rank_get_sigterm_when_it_has_ended(worker: Make) -> None:
    script = """
        import signal, subprocess, sys, time
        child = (
            "import signal, sys, time; "
            "signal.signal(15, lambda *_: (print('child is asked', flush=True), sys.exit())); "
            "print('child is up', flush=True); time.sleep(1000)"
        )
        process = subprocess.Popen([sys.executable, "-c", child])
        def save(*_):
            time.sleep(0.5)
            print("saved; child runs:", process.poll() is None, flush=True)
            sys.exit()
        signal.signal(15, save)
        while True: time.sleep(0.1)
    """
    one = worker(script).start().go()
    one.waits_for("child is up")
    one.stop(20.0)
    one.report()
    assert one.lines()[-2:] == ["saved; child runs: True", "child is asked"]


@pytest.mark.process
def test_the_children_of_a_python_rank_get_sigterm_at_the_end_of_the_grace(worker: Make) -> None:
    script = """
        import signal, subprocess, sys, time
        child = (
            "import signal, sys, time; "
            "signal.signal(15, lambda *_: (print('child is asked', flush=True), sys.exit())); "
            "print('child is up', flush=True); time.sleep(1000)"
        )
        signal.signal(15, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", child])
        while True: time.sleep(0.1)
    """
    one = worker(script).start().go()
    one.waits_for("child is up")
    one.stop(0.5)
    assert one.report()["ranks"][0]["signal"] == 9
    assert one.lines()[-1] == "child is asked"


@pytest.mark.process
def test_a_shell_that_ends_at_once_leaves_the_grace_to_its_children(worker: Make) -> None:
    script = """
        import signal, sys, time
        signal.signal(15, lambda *_: (time.sleep(2), print("saved", flush=True), sys.exit()))
        print("started", flush=True)
        while True: time.sleep(0.1)
    """
    one = worker(script, grace_s=20.0)
    command = ["bash", "-c", f"{sys.executable} {one.script}; true"]
    one.give(one.plan._replace(type="binary", python=None, command=command))
    assert saved(one, lambda: one.stop(20.0)) == ["saved"]


@pytest.mark.process
def test_an_interrupt_is_a_keyboard_interrupt(worker: Make) -> None:
    script = """
        import time
        try:
            print("started", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            time.sleep(0.2)
            print("saved", flush=True)
            raise
        finally:
            print("finally", flush=True)
    """
    one = worker(script, processes_per_worker=2).start().go()
    until(lambda: one.lines(rank=0) == one.lines(rank=1) == ["started"], "both ranks are up")
    one.stop(20.0, interrupt=True)
    assert one.report()["reason"] == "Cancelled"
    assert [one.lines(rank=rank)[-2:] for rank in (0, 1)] == [["saved", "finally"]] * 2


@pytest.mark.process
def test_a_rank_that_ignores_interrupts_gets_sigterm(worker: Make) -> None:
    script = """
        import signal, sys, time
        signal.signal(2, signal.SIG_IGN)
        signal.signal(15, lambda *_: (print("saved", flush=True), sys.exit()))
        print("started", flush=True)
        while True: time.sleep(0.1)
    """
    one = worker(script)
    assert saved(one, lambda: one.stop(20.0, interrupt=True)) == ["saved"]


@pytest.mark.process
def test_a_stop_after_an_interrupt_is_a_sigterm(worker: Make) -> None:
    script = """
        import signal, sys, time
        signal.signal(2, lambda *_: print("interrupted", flush=True))
        signal.signal(15, lambda *_: (print("saved", flush=True), sys.exit()))
        print("started", flush=True)
        while True: time.sleep(0.1)
    """
    one = worker(script).start().go()
    one.waits_for("started")
    one.stop(20.0, interrupt=True)
    one.waits_for("interrupted")
    one.stop(20.0)
    one.report()
    assert one.lines()[-2:] == ["interrupted", "saved"]


@pytest.mark.process
def test_a_stop_after_an_interrupt_is_no_second_sigterm(worker: Make) -> None:
    script = """
        import signal, time
        asked = []
        signal.signal(15, lambda *_: asked.append(1))
        print("started", flush=True)
        while not asked: time.sleep(0.1)
        print("saves", flush=True)
        time.sleep(2.0)
        print("saved", len(asked), flush=True)
    """
    one = worker(script)
    # a shell starts what is behind `&` with SIGINT ignored
    command = ["bash", "-c", f"trap : INT TERM; {sys.executable} {one.script} & wait; wait; wait"]
    one.give(one.plan._replace(type="binary", python=None, command=command))

    def order() -> None:
        one.stop(20.0, interrupt=True)
        one.waits_for("saves")
        one.stop(20.0)

    assert saved(one, order) == ["saved 1"]


@pytest.mark.process
def test_a_training_of_accelerate_saves_with_the_workers_of_its_data_loader(worker: Make) -> None:
    script = """
        import signal, sys, time
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Endless(Dataset):
            def __len__(self):
                return 10**6

            def __getitem__(self, index):
                time.sleep(0.01)
                return torch.ones(1)

        asked = []
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        for step, batch in enumerate(DataLoader(Endless(), batch_size=4, num_workers=1)):
            if step == 0:
                print("started", flush=True)
            if asked:
                asked.append(step)
            if len(asked) > 10:
                print("saved", flush=True)
                sys.exit()
    """
    one = worker(script, grace_s=20.0)
    launch = "accelerate.commands.launch"
    command = [sys.executable, "-m", launch, "--cpu", "--num_processes=1", str(one.script)]
    one.give(one.plan._replace(type="binary", python=None, command=command))
    assert saved(one, lambda: one.stop(20.0)) == ["saved"]
