"""The pool's process: what it keeps out, when it ends, what its death costs, which ranks
it leaves to a fresh start.
"""

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.durable import read_json
from client_lib.launcher_protocol.directory import MARKER
from client_lib.launcher_protocol.processes import marked
from client_lib.launcher_protocol.rank_processes import processes
from client_lib.worker import memory
from client_lib.worker.warm import fit
from tests.kit.processes import alive
from tests.kit.waiting import until
from tests.warm.conftest import Make, WarmWorker, package

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            (
                "import threading, time; threading.Thread(target=time.sleep, args=(60,), "
                "daemon=True).start()"
            ),
            "threads",
        ),
        ("import os, time; os.fork() or os.execvp('sleep', ['sleep', '1'])", "processes"),
        (
            "import subprocess, threading, time\nthreading.Thread(target=subprocess.run, "
            "args=(['sleep', '100'],), daemon=True).start()\ntime.sleep(0.5)",
            "threads",
        ),
        (
            "import subprocess, threading, time\n"
            "def again():\n    while True: subprocess.run(['sleep', '100'])\n"
            "threading.Thread(target=again, daemon=True).start()\ntime.sleep(0.5)",
            "threads",
        ),
        (
            (
                "import os, time\nif os.fork() == 0:\n    os.fork() or time.sleep(100)\n    "
                "os._exit(0)\nos.wait()"
            ),
            "processes",
        ),
        ("import os; kept = open(os.devnull)", "the open files"),
        ("raise RuntimeError('not here')", "import fails"),
        (
            (
                "import sys; sys.path.append(__file__.replace('site-packages/bad.py', 'own')); "
                "import mine"
            ),
            "no installed",
        ),
    ],
)
def test_a_module_that_must_not_be_imported_before_a_fork_is_left_out(
    pool: Make, tmp_path: Path, text: str, why: str
) -> None:
    site = package(tmp_path, good="", bad=text)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("")
    made = pool("good", "bad", environment={"PYTHONPATH": site})
    assert made.waits_for("ready")["modules"] == 1
    assert why in json.loads(made.config.read_text())["refused"]["bad"]


def test_with_a_package_all_of_its_modules_are_left_out(pool: Make, tmp_path: Path) -> None:
    site = Path(package(tmp_path, good=""))
    (site / "bad").mkdir()
    (site / "bad" / "__init__.py").write_text("import warnings; warnings.showwarning = print")
    for name in ("one", "two", "three"):
        (site / "bad" / f"{name}.py").write_text("")
    made = pool(
        "good", "bad.one", "bad.two", "bad.three", "bad", environment={"PYTHONPATH": str(site)}
    )
    assert made.waits_for("ready")["modules"] == 1
    assert list(json.loads(made.config.read_text())["refused"]) == ["bad"], "it started again once"


def test_a_gpu_that_was_opened_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from client_lib.worker import system
    from client_lib.worker.warm import pool

    # this machine may have no GPU; and pytest has children of its own
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidiactl")
    monkeypatch.setattr(os, "listdir", lambda path: ["3"])
    monkeypatch.setattr(system, "has_children", lambda: False)  # pytest's own
    assert pool.trouble() == "it opens a GPU"


def test_it_ends_when_nobody_asks_when_its_runtime_is_gone_and_with_its_directory(
    pool: Make,
) -> None:
    idle, lonely, lost = pool(idle_s=0), pool(), pool()
    assert "no job" in idle.waits_for("ending")["why"]
    lonely.ready().socket.close()
    lost.ready().config.unlink()
    assert "directory" in lost.waits_for("ending")["why"]
    for one in (idle, lonely, lost):
        assert one.process.wait(10) == 0


GIB = 2**30


@pytest.mark.parametrize(
    ("of_machine", "group", "short"),
    [
        ((16 * GIB, 8 * GIB), {}, False),
        ((16 * GIB, GIB // 2), {}, True),
        ((0, 0), {}, False),
        ((16 * GIB, 8 * GIB), {"memory.max": "max", "memory.current": str(2 * GIB)}, False),
        ((16 * GIB, 8 * GIB), {"memory.max": str(4 * GIB), "memory.current": str(2 * GIB)}, False),
        (
            (16 * GIB, 8 * GIB),
            {"memory.max": str(4 * GIB), "memory.current": str(4 * GIB - 1)},
            True,
        ),
        (  # most of it is a cache of files
            (16 * GIB, 8 * GIB),
            {
                "memory.max": str(4 * GIB),
                "memory.current": str(4 * GIB - 1),
                "memory.stat": f"anon 1\ninactive_file {GIB}\n",
            },
            False,
        ),
    ],
)
def test_memory_is_short_on_the_machine_or_in_the_control_group(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    of_machine: tuple[int, int],
    group: dict[str, str],
    short: bool,
) -> None:
    total, available = of_machine
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n"
    )
    # the memory of the machine is not the test's to use up
    monkeypatch.setattr(memory, "_MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(memory, "_memory_groups", lambda: [str(tmp_path)])
    for name, text in group.items():
        (tmp_path / name).write_text(text)
    assert memory.memory_is_short() is short


def test_it_ends_when_memory_is_short(pool: Make, tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    looks_there = f"""
        import builtins
        real, told = open, {str(told)!r}
        def looks_there(path, *how, **more):
            return real(told if path == "/proc/meminfo" else path, *how, **more)
        builtins.open = looks_there
    """
    made = pool(
        environment={"PYTHONPATH": package(tmp_path, sitecustomize=textwrap.dedent(looks_there))}
    ).ready()
    told.write_text("MemTotal: 1000 kB\nMemAvailable: 10 kB\n")
    assert made.waits_for("ending")["why"] == "memory is short"
    assert made.process.wait(10) == 0


def test_there_is_no_way_to_it_but_the_socket_that_its_runtime_holds(pool: Make) -> None:
    made = pool().ready()
    descriptors = [os.readlink(entry) for entry in Path(f"/proc/{made.pid}/fd").iterdir()]
    (ours,) = [target for target in descriptors if target.startswith("socket:")]
    named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    # the eighth would be its path
    assert [len(fields) for fields in named if fields[6] == ours[8:-1]] == [7]
    assert os.stat(f"/proc/{made.pid}").st_uid == os.getuid()


def test_a_setup_leaves_ranks_warm_unless_it_changes_the_installed_packages(
    pool: Make, worker: Callable[..., WarmWorker], tmp_path: Path
) -> None:
    site = package(tmp_path, good="")
    made = pool("good", environment={"PYTHONPATH": site}).ready()
    variables = {"environment": {**os.environ, "PYTHONPATH": site}}
    same = (
        worker("print(open('made').read())", setup="echo made > made", **variables)
        .started_by(made)
        .go()
    )
    assert (same.report()["reason"], same.started["warm"], same.lines()[0]) == (
        "Completed",
        True,
        "made",
    )
    changes = (
        worker("", setup=f"mkdir {site}/other-1.0.dist-info", **variables).started_by(made).go()
    )
    assert (changes.report()["reason"], changes.started["warm"]) == ("Completed", False)
    assert changes.started["fresh_because"] == "its setup has changed the installed packages"


def test_it_refuses_when_an_installed_package_has_changed(
    pool: Make, worker: Callable[..., WarmWorker], tmp_path: Path
) -> None:
    site = package(tmp_path, good="")
    made = pool("good", environment={"PYTHONPATH": site}).ready()
    (Path(site) / "other-1.0.dist-info").mkdir()
    one = worker("")
    made.socket.send(json.dumps({"do": "launch", "worker_dir": one.directory.path}).encode())
    assert made.message() == {"event": "ending", "why": "the installed packages have changed"}
    assert one.start().go().report()["exit_code"] == 0


def test_its_death_costs_a_running_job_nothing(
    pool: Make, worker: Callable[..., WarmWorker], tmp_path: Path
) -> None:
    made = pool().ready()
    gate = tmp_path / "gate"
    one = worker(
        f"import os, time\nprint('runs')\nwhile not os.path.exists({str(gate)!r}): "
        "time.sleep(0.01)\nprint('done')"
    )
    one.started_by(made).go().waits_for("runs")
    made.process.kill()
    made.process.wait()
    gate.write_text("")
    assert one.report()["exit_code"] == 0
    assert one.lines() == ["runs", "done"]


def test_no_rank_outlives_its_launcher(pool: Make, worker: Callable[..., WarmWorker]) -> None:
    one = worker("import time; print('runs'); time.sleep(600)", processes_per_worker=2)
    one.started_by(pool().ready()).go().waits_for("runs")
    until(lambda: len(marked(MARKER, one.directory.path)) == 2, "both ranks are marked")
    ranks = marked(MARKER, one.directory.path)
    os.kill(one.lock_holder(), signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in ranks), "the ranks are dead")


def test_what_a_rank_leaves_behind_in_a_session_of_its_own_is_found(
    pool: Make, worker: Callable[..., WarmWorker]
) -> None:
    one = worker(
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    )
    assert one.started_by(pool().ready()).go().report()["exit_code"] == 0
    assert not alive(int(one.lines()[0]))


FORKS = """
import os, signal, sys, threading, time
hidden = next(finder for finder in sys.meta_path if type(finder).__name__ == "Hidden")
holds = threading.Event()
def restore():
    with hidden._lock:  # as while it restores a module
        holds.set()
        time.sleep(0.3)
threading.Thread(target=restore).start()
holds.wait()
threading.Timer(%s, __import__, ["tqdm"]).start()
signal.alarm(60)
if os.fork() == 0:
    signal.alarm(20)
    import tqdm
    os._exit(7)
print(os.WEXITSTATUS(os.wait()[1]))
"""


@pytest.mark.parametrize("delay_s", [0.1, 0.6])
def test_a_fork_waits_for_a_thread_that_imports(
    pool: Make, worker: Callable[..., WarmWorker], delay_s: float
) -> None:
    one = worker(FORKS % delay_s)
    assert one.started_by(pool("tqdm").ready()).go().report(60.0)["exit_code"] == 0
    assert one.lines() == ["7"]


@pytest.mark.smoke
def test_a_stop_reaches_a_warm_rank(pool: Make, worker: Callable[..., WarmWorker]) -> None:
    one = worker("import time; print('runs'); time.sleep(600)")
    one.started_by(pool().ready()).go().waits_for("runs")
    one.stop(5.0)
    assert one.report()["ranks"][0]["signal"] == signal.SIGTERM


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"MALLOC_ARENA_MAX": "1"}, "MALLOC_ARENA_MAX"),
        ({"OMP_PROC_BIND": "true", "TORCH_LOGS": "+dynamo"}, "OMP_PROC_BIND, TORCH_LOGS"),
        ({"PYTHONHASHSEED": "0"}, "PYTHONHASHSEED"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "PYTORCH_CUDA_ALLOC_CONF"),
        ({"OMP_NUM_THREADS": "2,1"}, "OMP_NUM_THREADS=2,1"),
    ],
)
def test_a_rank_whose_libraries_would_read_another_value_starts_fresh_and_says_why(
    pool: Make, worker: Callable[..., WarmWorker], variables: dict[str, str], named: str
) -> None:
    one = worker(
        "import os; print(os.environ['CLIENT_LIB_WORKER_DIR'])",
        environment=dict(os.environ) | variables,
    )
    started = one.started_by(pool().ready()).go().started
    assert started["warm"] is False
    assert named in started["fresh_because"]
    assert one.report()["exit_code"] == 0
    assert one.lines() == [one.directory.path]


def test_a_script_whose_neighbour_has_the_name_of_a_loaded_module_starts_fresh(
    pool: Make, worker: Callable[..., WarmWorker]
) -> None:
    one = worker("import select; print(select.mine)")
    (one.folder / "select.py").write_text("mine = 1")
    started = one.started_by(pool().ready()).go().started
    assert "select.py" in started["fresh_because"]
    assert one.report()["exit_code"] == 0
    assert one.lines() == ["1"]


def test_a_rank_leaves_the_names_of_installed_modules_and_never_of_the_users_own(
    pool: Make, worker: Callable[..., WarmWorker]
) -> None:
    for launch in (lambda one: one.started_by(pool().ready()), lambda one: one.start()):
        one = worker("import mine, tqdm, json", record_imports=True)
        (one.folder / "mine.py").write_text("")
        assert launch(one).go().report()["exit_code"] == 0
        names = json.loads(Path(one.directory.imports).read_text())
        assert {"tqdm", "tqdm.std"} <= set(names)
        assert not {"mine", "json", "__main__"} & set(names)


def test_the_environment_of_a_pool_holds_nothing_of_the_job_but_what_is_read_at_load() -> None:
    kept = fit.environment_of(
        {
            "HF_TOKEN": "secret",
            "HUGGINGFACE_API_KEY": "secret",
            "MY": "own",
            "HF_HOME": "/x",
            "PATH": "/bin",
            "OMP_NUM_THREADS": "8",
        }
    )
    assert kept.keys() - set(fit.THREAD_COUNTS) == {"HF_HOME", "PATH"}
    assert kept["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.long)])
def test_jobs_leave_nothing_in_the_pool(
    pool: Make, worker: Callable[..., WarmWorker], rounds: int
) -> None:
    made = pool().ready()

    def size() -> tuple[int, int]:
        status = Path(f"/proc/{made.pid}/status").read_text()
        rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        counts = []
        for _ in range(5):  # the pool opens files for moments, too
            counts.append(len(os.listdir(f"/proc/{made.pid}/fd")))
            time.sleep(0.05)
        return rss, min(counts)

    def run(jobs: int) -> tuple[int, int]:
        for _ in range(jobs):
            one = worker("print('done')")
            assert one.started_by(made).go().report()["exit_code"] == 0
            one.close()
        children = Path(f"/proc/{made.pid}/task/{made.pid}/children")
        until(lambda: not children.read_text().split(), "no launcher and no zombie is left")
        return size()

    begun, (rss, descriptors) = run(2), run(rounds)
    assert descriptors == begun[1]
    assert rss < begun[0] + 1024


def test_a_launcher_of_an_occupied_directory_is_told_to_be_gone(
    pool: Make, worker: Callable[..., WarmWorker]
) -> None:
    made, one = pool().ready(), worker("import time; time.sleep(600)")
    one.started_by(made).go()
    made.socket.send(json.dumps({"do": "launch", "worker_dir": one.directory.path}).encode())
    assert made.waits_for("gone")["worker_dir"] == one.directory.path
    assert read_json(one.directory.report) is None
    assert processes(one.plan, one.directory, None)
