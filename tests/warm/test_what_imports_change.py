"""The effects of an import beyond sys.modules: a warm rank has it when it imports
the package, and not before.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from tests.warm.conftest import Make, WarmPool, WarmWorker, package
from tests.worker.conftest import Worker

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]


BothIn = Callable[..., None]


@pytest.fixture
def both_in(worker: Callable[..., WarmWorker], tmp_path: Path) -> BothIn:
    """Runs a script as a fresh rank and as a warm one of this pool, and
    compares what they print.
    """

    def run(pool: WarmPool, script: str, **fields: Any) -> None:
        (tmp_path / "fresh").mkdir()
        fresh, warm = Worker(tmp_path / "fresh", script, **fields), worker(script, **fields)
        fresh.run()
        started = warm.started_by(pool).go().started
        assert started["warm"], started
        assert warm.report()["exit_code"] == 0, warm.lines("stderr")
        assert warm.lines() == fresh.lines()

    return run


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import logging; logging.basicConfig()", "the root logger"),
        ("import logging; logging.disable()", "the root logger"),
        (
            "import logging; logging.setLoggerClass(type('Own', (logging.Logger,), {}))",
            "the root logger",
        ),
        ("import signal; signal.signal(signal.SIGUSR1, lambda *a: None)", "signal handlers"),
        ("import faulthandler; faulthandler.enable()", "faulthandler"),
        ("import sys; sys.excepthook = print", "excepthook"),
        ("import threading; threading.excepthook = print", "excepthook"),
        ("import warnings; warnings.showwarning = print", "the way warnings are shown"),
        ("import sys; sys.path.insert(0, '/somewhere')", "sys.path"),
        ("import sys; sys.stdout = sys.stderr", "the standard streams"),
        ("import builtins; builtins.mine = 1", "builtins"),
        ("import sys; sys.setrecursionlimit(5000)", "the interpreter's limits"),
        ("import gc; gc.set_threshold(50)", "the interpreter's limits"),
        ("import sys; sys.setprofile(lambda *a: None)", "tracing"),
        ("import decimal; decimal.getcontext().prec = 7", "the decimal context"),
        ("import socket; socket.setdefaulttimeout(5)", "the timeout of sockets"),
        ("import os; os.umask(os.umask(0) ^ 0o010)", "the umask"),
        ("import locale; locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')", "the locale"),
        (
            (
                "from resource import *; n, m = getrlimit(RLIMIT_NOFILE); "
                "setrlimit(RLIMIT_NOFILE, (n - 1, m))"
            ),
            "limits of the process",
        ),
    ],
)
def test_a_package_that_changes_the_interpreter_is_left_out(
    pool: Make, tmp_path: Path, text: str, named: str
) -> None:
    made = pool("bad", environment={"PYTHONPATH": package(tmp_path, bad=text)})
    assert made.waits_for("ready")["modules"] == 0
    assert json.loads(made.config.read_text())["refused"] == {"bad": f"it changes {named}"}


CHANGES = """
import atexit, os, sys, warnings
from atexit import register
atexit.register(print, "the package ends")
atexit.register(print, "with", sep="-", end="!\\n")
warnings.simplefilter("ignore", FutureWarning)
os.environ["OF_THE_PACKAGE"] = "1"
class Finder:
    def find_spec(name, path=None, target=None):
        return None
sys.meta_path.append(Finder)
def later():
    register(print, "registered by a call")
"""
LOOK = """
import atexit, os, sys, warnings
def look():
    ours = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "Finder"]
    package = os.environ.get("OF_THE_PACKAGE")
    print(len(ours), package, warnings.filters[0][:3:2], atexit.register.__module__)
look()
atexit.register(print, "the script ends")
"""


MATPLOTLIB = "import os; rcParams = {'backend': os.environ.get('MPLBACKEND') or 'agg'}"
BACKEND = "import matplotlib, os; print(matplotlib.rcParams, os.environ.get('MPLBACKEND'))"


@pytest.mark.parametrize(
    "begun_with", [{}, {"MPLBACKEND": "svg"}], ids=["a terminal", "a notebook"]
)
@pytest.mark.parametrize("backend", [{}, {"MPLBACKEND": ""}, {"MPLBACKEND": "pdf"}], ids=repr)
def test_matplotlib_has_the_backend_of_the_rank(
    pool: Make, both_in: BothIn, tmp_path: Path, begun_with: dict[str, str], backend: dict[str, str]
) -> None:
    site = {"PYTHONPATH": package(tmp_path, matplotlib=MATPLOTLIB)}
    made = pool("matplotlib", environment=site | begun_with)
    assert made.waits_for("ready")["modules"] == 1
    both_in(made, BACKEND, environment=dict(os.environ) | site | backend)


def test_a_rank_without_a_locale_is_warm_and_has_the_one_that_python_chooses(
    pool: Make, both_in: BothIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("LC_", "LANG"))]:
        monkeypatch.delenv(name)
    script = """
        import locale, os, subprocess, sys
        print(os.environ.get("LC_CTYPE"), locale.setlocale(locale.LC_ALL))
        print(sys.stdout.encoding, sys.flags.utf8_mode)
        print(subprocess.check_output(["printenv", "LC_CTYPE"]))
    """
    both_in(pool().ready(), script)


@pytest.mark.parametrize("then", ["", "import changes; look(); changes.later()"])
def test_what_a_package_adds_is_there_with_its_import_and_not_before(
    pool: Make, both_in: BothIn, tmp_path: Path, then: str
) -> None:
    site = package(tmp_path, changes=CHANGES)
    made = pool("changes", environment={"PYTHONPATH": site})
    assert made.waits_for("ready")["modules"] == 1
    both_in(made, LOOK + then, environment=dict(os.environ) | {"PYTHONPATH": site})


def test_what_the_standard_library_does_at_the_end_is_done_by_a_rank_without_packages(
    pool: Make, worker: Callable[..., WarmWorker], tmp_path: Path
) -> None:
    """The package imports multiprocessing; the rank, which does so by itself,
    must wait for its children.
    """
    site = package(tmp_path, parallel="import multiprocessing.util, weakref, logging")
    made = pool("parallel", environment={"PYTHONPATH": site}).ready()
    one = worker(
        "import multiprocessing, time\n"
        "def work(): time.sleep(0.2); print('the child is done', flush=True)\n"
        "multiprocessing.get_context('fork').Process(target=work).start()\n",
        environment=dict(os.environ) | {"PYTHONPATH": site},
    )
    assert one.started_by(made).go().started["warm"]
    assert one.report()["exit_code"] == 0
    assert one.lines() == ["the child is done"]


def test_a_submodule_is_no_attribute_of_its_package_before_its_import(
    pool: Make, both_in: BothIn
) -> None:
    """A script that forgets the import must fail here as it does in a pod."""
    made = pool("torch", "tqdm", "torch.distributed.tensor", "tqdm.contrib").ready()
    script = """
        import sys
        import torch, tqdm
        print([name for name in sys.modules if name.startswith("torch.distributed.tensor")])
        print(hasattr(torch.distributed, "tensor"), hasattr(tqdm, "contrib"))
        from torch.distributed import tensor
        print(tensor is torch.distributed.tensor is sys.modules["torch.distributed.tensor"])
        print(tensor.DTensor)
        import tqdm.contrib
        print(tqdm.contrib is sys.modules["tqdm.contrib"])
    """
    both_in(made, script)


LAZY = """
import importlib, sys, types
class Lazy(types.ModuleType):
    def __getattr__(self, name):
        if name not in ("first", "second"):
            raise AttributeError(name)
        value = importlib.import_module("." + name, __name__).VALUE
        setattr(self, name.upper(), value)
        return value
made = Lazy(__name__)
made.__dict__.update({name: value for name, value in globals().items() if name.startswith("__")})
sys.modules[__name__] = made
"""
AGAIN = """
import importlib.util, sys
spec = importlib.util.find_spec("lazy")
lazy = sys.modules["lazy"]
exec(compile(open(lazy.__file__).read(), "lazy", "exec"), dict(vars(lazy)))
VALUE = "first"
"""


@pytest.mark.parametrize(
    "imports",
    [
        "lazy.second",
        "lazy.first; lazy.second",
        "lazy.second; lazy.first",
        "from lazy import first, second",
    ],
)
def test_a_module_that_takes_the_place_of_its_package_does_so_with_its_import(
    pool: Make, both_in: BothIn, tmp_path: Path, imports: str
) -> None:
    """The package works as transformers does, whose first model executes its `__init__` again."""
    site = package(
        tmp_path, **{"lazy/__init__": LAZY, "lazy/first": AGAIN, "lazy/second": "VALUE = 'second'"}
    )
    made = pool("lazy", "lazy.second", "lazy.first", environment={"PYTHONPATH": site})
    assert made.waits_for("ready")["modules"] == 3
    script = f"""
        import sys, lazy
        {imports}
        for module in (lazy, sys.modules["lazy"]):
            names = sorted(name for name in vars(module) if not name.startswith("__"))
            print(module is lazy, names)
    """
    both_in(made, script, environment=dict(os.environ) | {"PYTHONPATH": site})


def test_a_module_whose_import_fails_after_that_of_another_is_not_known(tmp_path: Path) -> None:
    """In a process of its own: `Hidden` changes the import system."""
    site = package(tmp_path, broken="import zipapp\nraise ImportError('no libcudart')")
    script = """
        import sys
        from client_lib.worker.warm.hidden import Hidden
        hidden = Hidden(frozenset(sys.modules))
        for _ in range(2):
            try:
                hidden.learn("broken")
            except ImportError as error:
                print(error)
        try:
            import broken
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([site, os.getcwd()])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["no libcudart"] * 3, "")


@pytest.mark.parametrize(("loads", "times"), [("", 2), ("from mine import _speedups", 1)])
def test_a_package_that_has_loaded_a_compiled_module_is_not_executed_again(
    tmp_path: Path, loads: str, times: int
) -> None:
    """As torch, whose compiled module corrupts the process when it is loaded
    twice. In a process of its own.
    """
    site = package(
        tmp_path, **{"mine/__init__": f"print('runs')\n{loads}\nimport mine.late", "mine/late": ""}
    )
    compiled = next(Path(markupsafe.__file__).parent.glob("_speedups.*.so"))
    shutil.copy(compiled, Path(site, "mine", compiled.name))
    script = """
        import sys
        from client_lib.worker.warm.hidden import Hidden, Later
        hidden = Hidden(frozenset(sys.modules))
        for name in hidden.in_order(["mine", "mine.late"]):
            try:
                hidden.learn(name)
            except Later:
                pass
        import mine.late
        print("mine" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([site, os.getcwd()])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([*["runs"] * times, "True"], "")
