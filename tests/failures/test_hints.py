"""The hint for a known cause: what it names of the failure and of the job."""

from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from client_lib.launcher_protocol.outcome import Ended
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.wire import Failure
from client_lib.worker.function_runner import PACKAGES
from server_stub.failures import hint_for, missing_file, path_beside_submitter
from server_stub.runtimes.lost_peers import finished_peers as note

SNAPSHOT = CodeSnapshot(sha256="0" * 64, root="/home/ann/project", working_dir="src")
PYTHON = "/venv/bin/python"


def said(exception: str = "", *last_lines: str, **fields: object) -> Failure:
    values = {
        "rank": 0,
        "exit_code": 1,
        "exception": exception or None,
        "last_lines": list(last_lines),
    }
    return Failure.model_validate(values | fields)


def test_hint_a_file_that_the_snapshot_left_out() -> None:
    report = said("FileNotFoundError: [Errno 2] No such file or directory: 'data/x.csv'")
    assert missing_file(report) == "data/x.csv"
    assert path_beside_submitter("data/x.csv", SNAPSHOT) == "/home/ann/project/src/data/x.csv"
    unpacked = "/d/jobs/1/attempts/1/workers/0/work/data/x.csv"
    assert path_beside_submitter(unpacked, SNAPSHOT) == "/home/ann/project/data/x.csv"
    assert path_beside_submitter("/data/x.csv", SNAPSHOT) is None
    hint = hint_for(report, PYTHON, beside_submitter="/home/ann/project/src/data/x.csv")
    assert hint
    assert ".clientlibignore" in hint
    assert hint_for(report) is None


def test_hint_python_can_not_open_the_script() -> None:
    assert (
        missing_file(said("", "python: can't open file '/w/a.py': [Errno 2] No such file"))
        == "/w/a.py"
    )


def test_hint_uneven_data() -> None:
    lost = Ended(
        0, 1, None, 0.0, 9.0, 9.0, False, True, "RuntimeError: Connection closed by peer", None, []
    )
    done = lost._replace(rank=1, exit_code=0, lost_peer=False, exception=None)
    told = note(lost, [lost, done])
    assert "DistributedSampler" in (hint_for(said(f"{lost.exception}\n{told}"), PYTHON) or "")


def test_hint_a_missing_module_names_it_and_the_interpreter() -> None:
    for text in (
        "ModuleNotFoundError: No module named 'flash_attn.ops'",
        "/usr/bin/python3: No module named flash_attn.ops",
    ):
        hint = hint_for(said("", text), PYTHON) or ""
        assert "module flash_attn.ops" in hint
        assert "/venv/bin/python -m pip install" in hint


def test_hint_a_missing_module_has_the_name_of_its_package() -> None:
    hint = hint_for(said("ModuleNotFoundError: No module named 'yaml.representer'"), PYTHON) or ""
    assert "add requirements=['pyyaml']" in hint


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("attr", "attrs"),
        ("faiss", "faiss-cpu"),
        ("fitz", "pymupdf"),
        ("git", "gitpython"),
        ("google.cloud.storage", "google-cloud-storage"),
        ("google.protobuf", "protobuf"),
        ("hydra", "hydra-core"),
        ("mpl_toolkits", "matplotlib"),
        ("ray.train", "ray"),
        ("serial", "pyserial"),
        ("xdist", "pytest-xdist"),  # the environment of this server has it
    ],
)
def test_hint_a_missing_module_never_names_another_package(module: str, package: str) -> None:
    hint = hint_for(said(f"ModuleNotFoundError: No module named '{module}'"), PYTHON) or ""
    assert f"add requirements=['{package}']" in hint


def test_the_packages_of_modules_are_those_of_the_installed_modules() -> None:
    installed = packages_distributions()
    for module, package in PACKAGES.items():
        name = Requirement(package).name
        owners = {canonicalize_name(owner) for owner in installed.get(module, [name])}
        assert canonicalize_name(name) in owners, module


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "port 29500 is held by job b (process 7)\nRuntimeError: EADDRINUSE",
            "29500 is held by job b (process 7)",
        ),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='cdn.example.org', "
            "port=443): Max retries exceeded with url: /a",
            "can't reach cdn.example.org",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/data/out'", "open or write /data/out"),
        (
            "/lib/libc.so.6: version `GLIBC_2.34' not found (required by /x)",
            "GLIBC_2.34 is missing",
        ),
        ("ERROR: Package 'x' requires a different Python: 3.8.10 not in '>=3.10'", f"({PYTHON})"),
        ("DistStoreError: Timed out after 61 seconds. 1/2 clients joined.", "only 1 of 2"),
    ],
)
def test_a_hint_names_what_the_text_names(text: str, named: str) -> None:
    assert named in (hint_for(said(text), PYTHON) or "")


@pytest.mark.parametrize(
    ("processes", "ranks"), [(2, "the job has 4:"), ("default", "the job has more:")]
)
def test_hint_a_world_that_is_smaller_than_the_job(processes: int | str, ranks: str) -> None:
    spec = JobSpec.model_validate(
        {"script": "train.py", "n_workers": 2, "processes_per_worker": processes}
    )
    gloo = said("RuntimeError: [enforce fail at gloo/context.cc:27] rank < size. 3 vs 2")
    hint = hint_for(gloo, PYTHON, spec=spec) or ""
    assert "the script started a world of 2" in hint
    assert ranks in hint
    assert "Trainer(num_nodes=2)" in hint
