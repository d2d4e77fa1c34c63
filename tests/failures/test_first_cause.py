"""Which known cause is the first of an ending: the narrowest one that has ended the rank, whatever
the rank printed before.
"""

import pytest

from client_lib.spec.wire import Failure
from server_stub.failures.causes import first_cause
from tests.failures.endings import CAUSED, OWN, UNKNOWN

TEXTS = [(symptom, text) for symptom, texts in CAUSED.items() for text in texts]
NOISE = [
    "flash_attn is not there, going on without: No module named 'flash_attn'",
    "ModuleNotFoundError: No module named 'apex'",
    "CUDA out of memory with batch 64, trying batch 32",
    "[W socket.cpp:697] connect failed (No route to host), retrying",
    "OSError: [Errno 98] Address already in use, taking port 6007",
    "PermissionError: [Errno 13] Permission denied: '/root/.cache', caching in /tmp",
    "huggingface/tokenizers: The current process just got forked, after parallelism",
    "Loss is nan, skipping the step",
]
"""Lines about errors that a script has handled."""
SPAWNED = """\
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 122, in spawn_main
    exitcode = _main(fd, parent_sentinel)
  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 297, in _fixup_main_from_path
    main_content = runpy.run_path(main_path,
  File "/home/ann/train.py", line 2, in <module>
    {statement}
{exception}"""
"""The output of a spawned process that runs the script again."""


def failure(exception: str | None = None, *lines: str, code: int = 1) -> Failure:
    return Failure(rank=0, exit_code=code, exception=exception, last_lines=list(lines))


def symptom(of: Failure) -> str | None:
    found = first_cause(of)
    return found and found.cause.symptom


@pytest.mark.parametrize(("expected", "text"), TEXTS)
def test_a_text_has_one_first_cause(expected: str, text: str) -> None:
    assert symptom(failure(text)) == expected
    assert symptom(failure(None, "epoch 1", *text.splitlines())) == expected


@pytest.mark.parametrize("text", UNKNOWN)
def test_an_exception_of_no_known_cause_has_none(text: str) -> None:
    assert symptom(failure(text)) is None


@pytest.mark.parametrize("text", [*UNKNOWN, OWN["port in use"], OWN["destroyed"]])
def test_what_the_script_has_handled_does_not_decide(text: str) -> None:
    noisy = failure(text, *NOISE)
    if "nccl" not in text:  # such an error tells less than the lines before it
        assert symptom(noisy) == symptom(failure(text))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (132, "prints `Illegal instruction`"),
        (135, "prints `Bus error` or `out of shared memory`"),
        (137, "is killed by signal 9"),
        (139, None),
    ],
)
def test_a_signal_decides_before_all_texts(code: int, expected: str | None) -> None:
    lines = () if expected is None else NOISE
    assert symptom(failure(None, *lines, code=code)) == expected


@pytest.mark.parametrize(
    ("statement", "exception", "expected"),
    [
        (
            'dist.init_process_group("gloo")',
            OWN["port in use"],
            "starts processes while it is imported",
        ),
        (
            'model = Net().to("cuda")',
            "torch.OutOfMemoryError: CUDA out of memory.",
            "starts processes while it is imported",
        ),
        (
            "import hydra",
            "ModuleNotFoundError: No module named 'hydra'",
            "prints `No module named ...`",
        ),
    ],
)
def test_the_error_of_a_child_decides_before_the_loss_of_the_child(
    statement: str, exception: str, expected: str
) -> None:
    child = SPAWNED.format(statement=statement, exception=exception)
    lost = "RuntimeError: DataLoader worker (pid(s) 25772) exited unexpectedly"
    assert symptom(failure(lost, *child.splitlines())) == expected
    assert symptom(failure(lost)) == "loses a DataLoader worker"


def test_the_lines_of_nccl_decide_where_its_exception_says_little() -> None:
    nccl = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp"
    warning = "init.cc:1102 NCCL WARN Mismatched NCCL version detected : rank 0 version 22005"
    assert symptom(failure(nccl, "epoch 1", warning)) == "uses NCCL of different versions"
