"""A warm rank is as a fresh one: the same script runs as both, and what it finds is compared."""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.worker.rank_runner.answers import STACKS_FD
from tests.warm.conftest import Both, WarmPool, WarmWorker

pytestmark = [
    pytest.mark.process,
    pytest.mark.xdist_group("warm pool"),
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]
Run = Callable[..., Both]

LOOK = """
import sys
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
seen = {"modules": sorted(name for name, file in files.items() if "-packages/" in (file or ""))}
seen["ours"] = [n for n in sys.modules if n.startswith("client_lib")]
import atexit, decimal, faulthandler, gc, locale, logging, os, resource, signal
import stat, threading, time, warnings
seen["filters"] = [repr(f) for f in warnings.filters]
pid = os.getpid()
seen["session"] = [os.getsid(0) == pid, os.getpgid(0) == pid, pid == threading.get_native_id()]
handlers = {int(s): signal.getsignal(s) for s in signal.valid_signals()}
seen["signals"] = {s: getattr(what, "__qualname__", repr(what)) for s, what in handlers.items()}
seen["mask"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
seen["descriptors"] = {}
for fd in fds:
    try:
        seen["descriptors"][fd] = stat.S_IFMT(os.fstat(fd).st_mode)
    except OSError:
        pass  # of the listing
def stream(s):
    return [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(),
            s.seekable(), s.newlines, type(s).__name__, type(s.buffer).__name__, s.closed,
            s.fileno()]
seen["streams"] = [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)]
originals = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
seen["streams"] += [s is o for s, o in zip((sys.stdin, sys.stdout, sys.stderr), originals)]
seen["stdin"] = sys.stdin.read()
seen["environment"] = dict(os.environ)
with os.popen("env -0") as child:  # one that is left open may leave __warningregistry__ here
    lines = child.read().split("\\0")
seen["environment of a child"] = sorted(line for line in lines if not line.startswith("_="))
seen["argv"] = [sys.argv, sys.orig_argv[1:], sys.executable, sys._base_executable, sys.prefix,
                repr(sys.flags)]
seen["cwd"] = os.getcwd()
seen["path"] = sys.path
main = sys.modules["__main__"]
seen["main"] = [__name__, __file__, str(__spec__), str(__package__), __cached__,
                vars(main) is globals(), type(__loader__).__name__, __loader__.path,
                sorted(n for n in globals() if n.startswith("__"))]
umask = os.umask(0o77); os.umask(umask)
seen["umask"] = umask
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
seen["limits"] = {name: resource.getrlimit(getattr(resource, name)) for name in limits}
seen["nice"] = [os.nice(0), sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)]
seen["logging"] = [repr(logging.root.handlers), logging.root.level, logging.root.disabled]
seen["faulthandler"] = faulthandler.is_enabled()
seen["hooks"] = [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                 sys.gettrace() is None, threading.excepthook is threading.__excepthook__,
                 sys.breakpointhook is sys.__breakpointhook__]
seen["interpreter"] = [gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit(),
                       sys.getswitchinterval(), sys.dont_write_bytecode,
                       locale.setlocale(locale.LC_ALL), time.tzname, str(decimal.getcontext()),
                       sys.getfilesystemencoding(),
                       sys.last_type if hasattr(sys, "last_type") else None]
seen["threads"] = [threading.active_count(), threading.current_thread() is threading.main_thread(),
                   len(os.listdir("/proc/self/task"))]
import json
print(json.dumps(seen))
"""


@pytest.mark.smoke
def test_everything_that_a_script_sees_when_it_begins(both: Run) -> None:
    fresh, warm = both(
        LOOK, environment=dict(os.environ) | {"TZ": "Asia/Tokyo", "MY_OWN": "value with space"}
    ).values()
    for seen in (fresh, warm):
        for port in ("MASTER_PORT", "KUBEFLOW_TRAINER_SERVER_URL"):
            seen["environment"].pop(port)
            seen["environment of a child"] = [
                line for line in seen["environment of a child"] if not line.startswith(f"{port}=")
            ]
    assert warm["modules"] == fresh["modules"]
    assert warm["ours"] == []
    different = {name: (fresh[name], warm[name]) for name in fresh if fresh[name] != warm[name]}
    assert different == {}


def test_no_descriptor_of_launcher_or_pool_is_inherited(both: Run) -> None:
    _, warm = both(LOOK).values()
    its_own = STACKS_FD
    assert sorted(map(int, warm["descriptors"])) == [0, 1, 2, its_own]


def test_the_command_line_and_the_mark_of_the_worker_are_seen_by_others(both: Run) -> None:
    ran = both(
        """
        import os, sys
        shown = open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0))
        mark = "CLIENT_LIB_WORKER_DIR=" + os.environ["CLIENT_LIB_WORKER_DIR"]
        print(shown[1:][-3:], mark in open("/proc/self/environ").read().split(chr(0)))
        """,
        rank_runner=True,
    )
    assert ran.warm.lines()[0].endswith("True")
    assert str(ran.warm.script) in ran.warm.lines()[0]


def test_a_forked_launcher_is_shown_with_its_job_and_worker(both: Run) -> None:
    ran = both(
        """
        import os
        path = "/proc/%d/cmdline" % os.getppid()
        print(open(path).read().rstrip(chr(0)).split(chr(0))[-2:])
        """
    )
    folder = str(ran.warm.directory.path)
    assert ran.warm.lines() == [str([folder, "job job-1, worker 0"])]


@pytest.mark.parametrize(
    "counts",
    [
        {"OMP_NUM_THREADS": "1"},
        {"OMP_NUM_THREADS": "3"},
        {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ],
    ids=lambda counts: ",".join(counts.values()),
)
def test_threads_of_openmp_blas_and_torch(both: Run, counts: dict[str, str]) -> None:
    lines = both(
        """
        import torch, threading
        print(torch.get_num_threads(), torch.get_num_interop_threads())
        info = torch.__config__.parallel_info().splitlines()
        print([line for line in info if "max_threads" in line])
        other = threading.Thread(target=lambda: print(torch.get_num_threads()))
        other.start(); other.join()
        import ctypes, re
        mapped = {line.split()[-1] for line in open("/proc/self/maps")}
        for path in sorted(path for path in mapped if re.search("openblas|gomp", path)):
            library = ctypes.CDLL(path)
            for name in ("omp_get_max_threads", "scipy_openblas_get_num_threads64_"):
                if hasattr(library, name):
                    print(name, getattr(library, name)())
        import torch._C
        print(torch.ones(300, 300).mm(torch.ones(300, 300)).sum().item())
        """,
        environment=dict(os.environ) | counts,
    ).lines()
    if len(counts) == 1:
        assert lines[0].split()[0] == str(
            min(int(counts["OMP_NUM_THREADS"]), len(os.sched_getaffinity(0)))
        )


SEEDS = """
import random, json, uuid, torch, numpy, secrets, tempfile
print(json.dumps([random.random(), float(numpy.random.rand()), torch.initial_seed(),
                  torch.rand(1).item(), uuid.uuid4().hex,
                  float(numpy.random.default_rng().random()), secrets.token_hex(),
                  tempfile.mktemp()]))
"""


def test_random_numbers_differ_between_ranks_and_jobs_as_fresh_ones_do(both: Run) -> None:
    ran = both(SEEDS, processes_per_worker=2)
    (a, b), (c, d) = (
        [json.loads(w.lines(rank=rank)[0]) for rank in (0, 1)] for w in (ran.fresh, ran.warm)
    )
    for place in range(len(a)):
        fresh_differ = a[place] != b[place]
        assert (c[place] != d[place]) == fresh_differ, place
        assert (c[place] != a[place]) == fresh_differ, place


def test_multiprocessing_with_fork_and_spawn_and_workers_of_a_data_loader(both: Run) -> None:
    lines = both(
        """
        import multiprocessing, os, sys
        class Item:
            def __init__(self, value): self.value = value
        def square(item):
            return Item(item.value ** 2)
        if __name__ == "__main__":
            os.chdir("/")  # a child looks for the script from where its parent began
            print(multiprocessing.get_start_method(), multiprocessing.parent_process())
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    items = pool.map(square, [Item(1), Item(2), Item(3)])
                    print(method, [item.value for item in items])
            import torch
            from torch.utils.data import DataLoader
            loader = DataLoader(torch.arange(8), batch_size=2, num_workers=2)
            print("loader", [batch.tolist() for batch in loader])
        """
    ).lines()
    assert {"fork [1, 4, 9]", "spawn [1, 4, 9]", "forkserver [1, 4, 9]"} <= set(lines)
    assert "loader [[0, 1], [2, 3], [4, 5], [6, 7]]" in lines


WITH_A_COMPILER = "inductor" if shutil.which("g++") else "eager"


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param(WITH_A_COMPILER, marks=pytest.mark.long)]
)
def test_torch_compile(both: Run, backend: str) -> None:
    lines = both(
        f"""
        import torch
        f = torch.compile(lambda x: (x * 2 + 1).sum(), backend={backend!r})
        print(f(torch.arange(4.0, requires_grad=True)).item())
        """
    ).lines()
    assert lines == ["16.0"]


ENDS = {
    "exit code": "sys.exit(7)",
    "message": "sys.exit('a message')",
    "no torch": "print('torch' in sys.modules)",
    "exception": "import torch\ntorch.ones(2) @ torch.ones(3)",
    "chained": (
        "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('outer') from error"
    ),
    "syntax": "exec('x = = 1')",
    "import": "import torch.no_such_module",
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(10)",
    "segmentation": "import ctypes; ctypes.string_at(0)",
    "abort": "os.abort()",
    "by hand": "os._exit(4)",
    "own hook": "sys.excepthook = lambda *a: print('mine', a[0].__name__)\nraise ValueError",
    "broken pipe": "r, w = os.pipe(); os.close(r); os.write(w, b'x')",
    "atexit": (
        "import atexit; atexit.register(print, 'last'); threading.Thread(target=lambda: "
        "print('thread')).start()"
    ),
    "memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); bytearray(2**31)"
    ),
    "warning": (
        "import warnings; warnings.simplefilter('error'); import torch; warnings.warn('as an "
        "error')"
    ),
    "faulthandler": "import faulthandler; faulthandler.enable(); print(faulthandler.is_enabled())",
    "logging": "import logging; logging.warning('to stderr'); logging.info('nowhere')",
    "unflushed": (
        "open('left.txt', 'w').write('unflushed'); f = open('kept.txt', 'w'); f.write('x' * 10)"
    ),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_how_it_ends_and_what_it_says(both: Run, end: str) -> None:
    ran = both("import os, signal, sys, threading, time\nprint('begun')\n" + end + "\n")
    ran.lines()
    ran.lines("stderr")
    for name in ("left.txt", "kept.txt"):
        files = [worker.folder / name for worker in (ran.fresh, ran.warm)]
        assert len({file.read_bytes() if file.exists() else None for file in files}) == 1


def test_the_error_file(both: Run) -> None:
    ran = both("import torch\ndef train():\n    raise ValueError('lr', 0.1)\ntrain()")
    ours, theirs = (
        json.loads(Path(w.directory.error_file(0)).read_text())["message"]
        for w in (ran.warm, ran.fresh)
    )
    assert ours["message"] == theirs["message"] == "ValueError: ('lr', 0.1)"
    stacks = [
        m["extraInfo"]["py_callstack"].replace(str(w.folder), "")
        for m, w in ((ours, ran.warm), (theirs, ran.fresh))
    ]
    assert stacks[0] == stacks[1]
    assert ran.warm.report()["ranks"][0]["exception"] == "ValueError: ('lr', 0.1)"


@pytest.mark.gpu
def test_a_gpu_is_untouched_before_the_script_and_usable_in_it(
    both: Run, warm_pool: WarmPool
) -> None:
    lines = both(
        """
        import torch
        print(torch.cuda.is_initialized(), torch.cuda.device_count())
        print(torch.ones(3, device="cuda").sum().item(), torch.cuda.current_device())
        """,
        gpus=["0"],
    ).lines()
    assert lines == ["False 1", "3.0 0"]
    opened = [os.readlink(entry) for entry in Path(f"/proc/{warm_pool.pid}/fd").iterdir()]
    assert not [target for target in opened if target.startswith("/dev/nvidia")]


def test_the_filters_of_warnings_after_an_import(both: Run) -> None:
    both(
        """
        import warnings
        warnings.simplefilter("error", ResourceWarning)
        import torch, numpy
        print([repr(f) for f in warnings.filters])
        """
    ).lines()


def test_a_package_that_is_looked_for_and_not_imported(both: Run) -> None:
    both(
        """
        import importlib.metadata, importlib.util, pkgutil, sys
        for name in ("torch", "numpy", "no_such"):
            spec = importlib.util.find_spec(name)
            found = spec and (spec.name, spec.origin, spec.has_location, spec.cached, spec.parent)
            print(found, spec and list(spec.submodule_search_locations), name in sys.modules)
        print(len(pkgutil.get_data("numpy", "py.typed")), importlib.metadata.version("torch"))
        """
    ).lines()


def test_two_ranks_train_together(both: Run) -> None:
    lines = both(
        """
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        loss = model(torch.ones(2, 4) * dist.get_rank()).sum()
        loss.backward()
        print(round(model.module.weight.grad.sum().item(), 4), dist.get_world_size())
        print("rank_runner" in dist.init_process_group.__code__.co_filename)
        dist.destroy_process_group()
        """,
        processes_per_worker=2,
        master_port=random.randint(20000, 60000),
    ).lines()
    assert lines == ["4.0 2", "True"]


def test_modules_of_another_job_are_imported_anew(
    warm_pool: WarmPool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said = []
    for text in ("one", "two"):
        folder = tmp_path_factory.mktemp(text)
        (folder / "mine.py").write_text(f"text = {text!r}")
        worker = WarmWorker(folder, "import mine; print(mine.text, mine.__file__)")
        assert worker.started_by(warm_pool).go().report()["exit_code"] == 0
        said.append(worker.lines()[0].split())
        worker.close()
    assert [words[0] for words in said] == ["one", "two"]
