"""The rank runner: everything is as under `python script.py`, which each test runs beside it."""

import json
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import pytest

from client_lib.worker.rank_runner import master
from client_lib.worker.rank_runner.frames import remove_our_frames
from tests.kit.interpreters import EACH_PYTHON
from tests.kit.processes import free_port
from tests.worker.rank_runner.joined import RUNNER


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_script(folder: Path, *argv: str, python: str = sys.executable, **environment: str) -> Done:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "MASTER_ADDR", "MASTER_PORT")}
    done = subprocess.run(
        [python, *argv],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def both(
    folder: Path, script: str, *arguments: str, name: str = "script.py", **environment: str
) -> Done:
    """The result of the script under the rank runner, after a comparison with plain python."""
    (folder / name).write_text(textwrap.dedent(script))
    plain = run_script(folder, name, *arguments, **environment)
    ours = run_script(folder, str(RUNNER), name, *arguments, **environment)
    assert ours == plain
    return ours


def _fake_torch(folder: Path, distributed_c10d: str) -> None:
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .distributed_c10d import *")
    (package / "distributed_c10d.py").write_text(distributed_c10d)


def test_main_argv_path_and_globals(tmp_path: Path) -> None:
    done = both(
        tmp_path,
        '''
        """The script's docstring."""
        import sys
        names = sorted(globals())
        print(__name__, __file__, __doc__, __package__, __spec__, __cached__, __builtins__, names)
        print(type(__loader__).__name__, __loader__.name, __loader__.path, __annotations__)
        print(sys.argv, sys.path, sys.orig_argv[1:], sys.flags)
        import __main__
        print(vars(__main__) is globals(), sys.modules["__main__"] is __main__)
        ''',
        "--flag",
        "with space",
        "",
    )
    assert done.returncode == 0
    assert "with space" in done.stdout


def test_a_script_behind_a_symbolic_link_imports_from_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("print('neighbour')")
    (tmp_path / "real" / "script.py").write_text(
        "import sys, neighbour; print(__file__, sys.path[0], sys.argv)"
    )
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "script.py")
    assert run_script(tmp_path, str(RUNNER), "link.py") == run_script(tmp_path, "link.py")


def test_pythonsafepath_is_honoured(tmp_path: Path) -> None:
    both(tmp_path, "import sys; print(sys.path)", PYTHONSAFEPATH="1")


@pytest.mark.parametrize("torch", [False, True], ids=["plain", "torch"])
@pytest.mark.parametrize(
    "end",
    [
        "sys.exit()",
        "sys.exit(0)",
        "sys.exit(3)",
        "sys.exit(300)",
        "sys.exit(-1)",
        "sys.exit('a message')",
        "sys.exit([1])",
        "sys.stdout.close(); sys.exit('a message')",
        "sys.exit(130)",
        "raise SystemExit",
        "raise ValueError('wrong')",
        "raise KeyboardInterrupt",
        "import signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
        "os._exit(4)",
        "os.kill(os.getpid(), 9)",
        "sys.stdout.close(); os.close(1)",
        "pass",
    ],
)
def test_the_exit_status_and_what_is_printed(tmp_path: Path, end: str, torch: bool) -> None:
    # the test needs a torch that counts as loaded, not the three seconds of a real one
    fake = "import sys; sys.modules['torch'] = sys" if torch else ""
    both(
        tmp_path,
        f"import os, sys, time\n{fake}\nprint('out')\nprint('err', file=sys.stderr)\n{end}\n",
    )


def test_tracebacks_hold_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f():\n    raise KeyError('inner')\n")
    done = both(
        tmp_path,
        """
        import broken
        def g():
            try:
                broken.f()
            except KeyError as error:
                raise RuntimeError("outer") from error
        g()
        """,
    )
    assert "rank_runner" not in done.stderr


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    assert both(tmp_path, "x = = 1").returncode == 1


def test_an_own_excepthook_is_called_and_a_broken_one_is_survived(tmp_path: Path) -> None:
    both(
        tmp_path,
        "import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__)\nraise ValueError",
    )
    assert (
        both(
            tmp_path, "import sys\nsys.excepthook = lambda *a: sys.exit(42)\nraise ValueError"
        ).returncode
        == 42
    )
    both(
        tmp_path,
        "import sys\nsys.excepthook = lambda *a: sys.exit('the hook ends it')\nraise ValueError",
    )


def test_atexit_threads_and_destructors_run_in_pythons_order(tmp_path: Path) -> None:
    script = """
        import atexit, sys, threading, time
        {torch}
        class Thing:
            def __del__(self):
                print("destructor", flush=True)
        thing = Thing()
        def late():
            time.sleep(0.2)
            print("thread")
        atexit.register(print, "first registered")
        atexit.register(print, "second registered")
        threading.Thread(target=late).start()
        print("end of the script")
        """
    expected = [
        "end of the script",
        "thread",
        "second registered",
        "first registered",
        "destructor",
    ]
    for torch in ("", "sys.modules['torch'] = sys"):
        assert both(tmp_path, script.format(torch=torch)).stdout.splitlines() == expected


def test_a_daemon_thread_neither_holds_the_end_nor_stumbles(tmp_path: Path) -> None:
    done = both(
        tmp_path,
        """
        import sys, threading, time
        sys.modules["torch"] = sys
        def forever():
            while True:
                time.sleep(0.001)
        threading.Thread(target=forever, daemon=True).start()
        print("end")
        """,
    )
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_files_that_nobody_closed_are_complete(tmp_path: Path) -> None:
    script = """
        import gzip, io, sys
        early = open("early.txt", "w"); early.write("early")
        {torch}
        text = open("text.txt", "w"); text.write("text")
        binary = open("binary.bin", "wb"); binary.write(b"binary")
        packed = gzip.open("packed.gz", "wt"); packed.write("packed")
        class Holder: pass
        holder = Holder()
        holder.me = holder
        holder.file = open("cycle.txt", "w"); holder.file.write("cycle")
        print("no newline", end="")
        """
    names = ["early.txt", "text.txt", "binary.bin", "cycle.txt"]
    for torch in ("", "sys.modules['torch'] = sys"):
        both(tmp_path, script.format(torch=torch))
        assert [(tmp_path / name).read_text() for name in names] == [
            "early",
            "text",
            "binary",
            "cycle",
        ]
        unpacked = subprocess.run(
            ["gzip", "-dc", "packed.gz"], cwd=tmp_path, capture_output=True, check=True
        )
        assert unpacked.stdout == b"packed"


def test_buffered_output_of_c_is_not_lost(tmp_path: Path) -> None:
    done = both(
        tmp_path,
        """
        import ctypes, sys
        sys.modules["torch"] = sys
        libc = ctypes.CDLL(None)
        libc.printf(b"from C, without a newline")
        """,
    )
    assert done.stdout == "from C, without a newline"


def test_classes_of_main_are_pickled_and_spawned_processes_find_them(tmp_path: Path) -> None:
    done = both(
        tmp_path,
        """
        import multiprocessing, pickle
        class Point:
            def __init__(self, x): self.x = x
        def double(point): return Point(point.x * 2)
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Point(1))).x == 1
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print([p.x for p in pool.map(double, [Point(i) for i in range(5)])])
        """,
    )
    assert done.stdout == "[0, 2, 4, 6, 8]\n"


def test_a_forked_child_that_fails_writes_no_error_file(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    (tmp_path / "script.py").write_text("import os\nif os.fork() == 0: raise ValueError\nos.wait()")
    assert (
        run_script(
            tmp_path, str(RUNNER), "script.py", TORCHELASTIC_ERROR_FILE=str(error_file)
        ).returncode
        == 0
    )
    assert not error_file.exists()


def test_the_exception_is_in_the_error_file_in_torchs_format(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    error_file = tmp_path / "error.json"
    (tmp_path / "script.py").write_text("def f():\n    raise ValueError('what is wrong')\nf()")
    run_script(tmp_path, str(RUNNER), "script.py", TORCHELASTIC_ERROR_FILE=str(error_file))
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: what is wrong"
    assert "in f\n" in message["extraInfo"]["py_callstack"]
    assert "rank_runner" not in message["extraInfo"]["py_callstack"]
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(error_file))
    assert isinstance(failure.message, dict)
    assert failure.message["message"] == "ValueError: what is wrong"


def test_an_error_is_in_the_error_file_while_the_process_group_is_destroyed(tmp_path: Path) -> None:
    _fake_torch(
        tmp_path,
        """
import os
def init_process_group(): pass
def destroy_process_group(): print(open(os.environ["TORCHELASTIC_ERROR_FILE"]).read())
""",
    )
    script = """
        import os
        import torch.distributed as dist
        path = os.environ["TORCHELASTIC_ERROR_FILE"]
        try:
            {}["handled"]
        except KeyError:
            dist.destroy_process_group()
        print("left" if os.path.exists(path) else "removed")
        try:
            {}["learning_rate"]
        finally:
            dist.destroy_process_group()
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    error_file = tmp_path / "error.json"
    done = run_script(tmp_path, str(RUNNER), "script.py", TORCHELASTIC_ERROR_FILE=str(error_file))
    handled, left, meanwhile = done.stdout.splitlines()
    assert (left, json.loads(handled)["message"]["message"]) == ("removed", "KeyError: 'handled'")
    first, last = (json.loads(text)["message"] for text in (meanwhile, error_file.read_text()))
    assert first["message"] == last["message"] == "KeyError: 'learning_rate'"


def test_an_exception_without_a_text_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    script = """
        class Unset(Exception):
            def __str__(self):
                return self.text
        raise Unset
    """
    done = both(tmp_path, script, TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert done.stderr.endswith("Unset: <exception str() failed>\n")


def test_a_module_that_answers_no_question_does_not_fail_a_script_that_succeeds(
    tmp_path: Path,
) -> None:
    script = """
        import sys
        class Lazy:
            def __getattr__(self, name):
                raise RuntimeError("not loaded")
        sys.modules["lazy"] = Lazy()
    """
    (tmp_path / "imports").touch()
    assert both(tmp_path, script, CLIENT_LIB_WORKER_DIR=str(tmp_path)).returncode == 0


def test_an_error_file_that_is_there_already_is_left(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    script = f"open({str(error_file)!r}, 'w').write('mine')\nraise ValueError"
    (tmp_path / "script.py").write_text(script)
    run_script(tmp_path, str(RUNNER), "script.py", TORCHELASTIC_ERROR_FILE=str(error_file))
    assert error_file.read_text() == "mine"


def test_garbage_is_not_collected_while_torch_is_imported_and_is_afterwards(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import gc; during = gc.isenabled()")
    script = (
        "import gc, torch; print(torch.during, gc.isenabled(), gc.get_freeze_count() > 0, "
        "torch.__spec__.loader)"
    )
    (tmp_path / "script.py").write_text(script)
    done = run_script(tmp_path, str(RUNNER), "script.py")
    assert done.stdout.startswith("False True True <_frozen_importlib_external.SourceFileLoader")
    (tmp_path / "script.py").write_text(
        "import gc; gc.disable(); import torch; print(gc.isenabled())"
    )
    assert run_script(tmp_path, str(RUNNER), "script.py").stdout == "False\n"


def test_a_torch_that_can_not_be_imported_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcuda.so.1: cannot open')")
    both(tmp_path, "import torch")


SPAWNED_LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i * i)
if __name__ == "__main__":
    for context in ("spawn", "fork"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=context)
        print([batch.tolist() for batch in loader])
    kept = iter(DataLoader(Squares(), num_workers=1, persistent_workers=True))
    print(next(kept))
"""


@pytest.mark.process
def test_a_data_loader_with_spawned_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNED_LOADER)
    done = run_script(tmp_path, str(RUNNER), "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n" * 2 + "tensor([0])\n"


RENDEZVOUS = """
import os, time
started = time.monotonic()
import torch, torch.distributed as dist
if os.environ["RANK"] == "0":
    time.sleep(1.0)
dist.init_process_group("gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(tensor.item(), flush=True)
if os.environ.get("DESTROY"):
    dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.parametrize("destroy", ["", "1"])
def test_a_rank_that_comes_before_rank_0_waits_for_the_port(tmp_path: Path, destroy: str) -> None:
    (tmp_path / "script.py").write_text(RENDEZVOUS)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "DESTROY": destroy,
    }
    answers: list[Done] = []

    def rank(number: int) -> None:
        answers.append(run_script(tmp_path, str(RUNNER), "script.py", RANK=str(number), **shared))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(done.returncode, done.stdout) for done in answers] == [(0, "2.0\n"), (0, "2.0\n")], (
        answers
    )


@pytest.mark.parametrize("place", ["_pg_map", "_world.pg_map"], ids=["torch 1.13", "torch 2"])
def test_a_process_group_lives_to_the_end_of_the_process(tmp_path: Path, place: str) -> None:
    """Gloo's threads race with its teardown: torch 1.13 then waits for a thread that
    waits for the interpreter.
    """
    _fake_torch(
        tmp_path,
        f"""
class Group:
    def __del__(self): print("torn down")
class _world: pg_map = {{}}
if {place!r} == "_pg_map":
    del _world
    _pg_map = {{}}
def init_process_group(*args, **kwargs): {place}[Group()] = "gloo"
def destroy_process_group(): {place}.clear()
""",
    )
    (tmp_path / "script.py").write_text(
        "import torch.distributed as "
        "dist\ndist.init_process_group()\ndist.destroy_process_group()\nprint('done')\n"
    )
    plain, ours = run_script(tmp_path, "script.py"), run_script(tmp_path, str(RUNNER), "script.py")
    assert plain.stdout == "torn down\ndone\n"
    assert (ours.returncode, ours.stdout) == (0, "done\n"), ours.stderr


LOAD_RUNNER = f"""import importlib.util
spec = importlib.util.spec_from_file_location('runner', {str(RUNNER)!r})
runner = importlib.util.module_from_spec(spec); spec.loader.exec_module(runner)
"""


def test_the_wait_for_the_master_polls_until_it_listens(tmp_path: Path) -> None:
    waits = tmp_path / "waits.py"
    waits.write_text(f"{LOAD_RUNNER}runner.wait_for_master(); print('there')\n")
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        environment = {
            "RANK": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master.getsockname()[1]),
        }
        process = subprocess.Popen(
            [sys.executable, str(waits)],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.3)  # it must still be waiting: nothing to poll for
        assert process.poll() is None
        master.listen()
        assert process.communicate(timeout=10)[0] == "there\n"


def test_a_long_wait_for_the_master_asks_less_often(tmp_path: Path) -> None:
    waits = tmp_path / "waits.py"
    waits.write_text(
        f"{LOAD_RUNNER}import socket\n"
        f"asked = []\n"
        f"def refused(*_, **__): asked.append(1); raise ConnectionRefusedError\n"
        f"socket.create_connection, runner._LIMIT_S = refused, 2.0\n"
        f"runner.wait_for_master(); print(len(asked))\n"
    )
    waited = run_script(tmp_path, str(waits), RANK="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert 0 < int(waited.stdout) < 450


@EACH_PYTHON
def test_on_other_pythons_too(tmp_path: Path, python: str) -> None:
    script = """
        import atexit, sys, threading
        sys.modules["torch"] = sys
        names = sorted(globals())
        print(__name__, __file__, sys.argv, sys.path, names, flush=True)
        atexit.register(print, "atexit")
        threading.Thread(target=print, args=("thread",)).start()
        open("kept.txt", "w").write("x")
        {end}
    """
    for end in ("pass", "raise ValueError(1)", "sys.exit(3)", "raise KeyboardInterrupt"):
        (tmp_path / "script.py").write_text(textwrap.dedent(script).format(end=end))
        assert run_script(tmp_path, str(RUNNER), "script.py", python=python) == run_script(
            tmp_path, "script.py", python=python
        )


UNWINDING = """
import contextlib, json, os, sys

def ask(*_):
    os.kill(os.getpid(), 51)
    with contextlib.suppress(OSError):
        with open(os.environ["TORCHELASTIC_ERROR_FILE"]) as file:
            print(json.load(file)["message"]["message"])
    os._exit(0)

def fail(name="lr"):
    return {}[name]

@contextlib.contextmanager
def cleaning():
    try:
        yield
    finally:
        ask()

class Cleans:
    def __enter__(self): pass
    __exit__ = ask

def steps():
    try:
        yield 1
        fail()
    finally:
        ask()

def train():
    try:
        fail()
    finally:
        try:
            fail("inner")
        except KeyError:
            ask()

async def run():
    try:
        fail()
    finally:
        ask()

"""


@EACH_PYTHON
@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("try:\n    fail()\nfinally:\n    ask()", True),
        ("try:\n    fail()\nexcept KeyError:\n    ask()\n    raise", True),
        (
            (
                "try:\n    fail()\nexcept KeyError as error:\n    ask()\n    raise ValueError() "
                "from error"
            ),
            True,
        ),
        ("try:\n    fail()\nexcept KeyError:\n    ask()\n    sys.exit(3)", True),
        ("with Cleans():\n    fail()", True),
        ("with cleaning():\n    fail()", True),
        ("list(steps())", True),
        ("train()", True),
        ("import asyncio\nasyncio.run(run())", True),
        ("exec(compile('try:\\n    fail()\\nfinally:\\n    ask()', '<cell>', 'exec'))", True),
        ("try:\n    fail()\nexcept KeyError:\n    ask()", False),
        (
            (
                "while True:\n    try:\n        fail()\n    except KeyError:\n        if not fail: "
                "raise\n        ask()"
            ),
            False,
        ),
        (
            (
                "try:\n    pass\nfinally:\n    try:\n        fail()\n    except KeyError:\n        "
                "ask()"
            ),
            False,
        ),
        ("try:\n    pass\nfinally:\n    ask()", False),
        ("ask()", False),
    ],
)
def test_the_exception_from_which_the_main_thread_unwinds_is_written_when_it_is_asked_for(
    tmp_path: Path, python: str, script: str, named: bool
) -> None:
    (tmp_path / "script.py").write_text(UNWINDING + script)
    done = run_script(
        tmp_path,
        str(RUNNER),
        "script.py",
        python=python,
        TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"),
    )
    assert done == (0, "KeyError: 'lr'\n" if named else "", "")


def test_a_traceback_in_the_wait_for_the_master_holds_no_frame_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The warm pool imports the package, whose modules have globals of their own."""
    for name, value in {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # stands for Ctrl-C while the rank connects
    monkeypatch.setattr(socket, "create_connection", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        master.wait_for_master()
    remove_our_frames(caught.value, set())
    shown = traceback.extract_tb(caught.value.__traceback__)
    assert "wait_for_master" not in [frame.name for frame in shown]
