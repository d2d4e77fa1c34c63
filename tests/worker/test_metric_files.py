"""Files of metrics that a script writes by itself, as TensorBoard and Lightning write them."""

import base64
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.worker.loop import Loop
from client_lib.worker.metric_files import MetricFiles

# written by torch's SummaryWriter (torch 2.15, tensorboard 2.20): three values of train/loss, one
# of new_style, a text
EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCWeHJVDmwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "sc2OuR4AAAAAAAAA2dwSMgl+mCVQ5sDaQSoTChEKCnRyYWluL2xvc3MVAAAAP2wI/oUgAAAAAAAAACntqVAJMpklUObA2kEQCioTChEKCnRyYWlu"
    "L2xvc3MVAADAf3qFEoQgAAAAAAAAACntqVAJfJklUObA2kEQFCoTChEKCnRyYWluL2xvc3MVzczMPSQOfMwtAAAAAAAAADxBivsJIJolUObA2kEQ"
    "4KcSKh4KHAoDbmV3QggIASoEAADgQEoLCgkKB3NjYWxhcnMlVY0RNAAAAAAAAABeMxdcCcqaJVDmwNpBKikKJwoOdC90ZXh0X3N1bW1hcnlCCwgH"
    "EgQSAggBQgF4SggKBgoEdGV4dIABBog="
)
LOSSES = [
    [3, 0, 0, {"train/loss": 0.5}],
    [3, 10, 0, {"train/loss": float("nan")}],
    [3, 20, 0, {"train/loss": 0.1}],
]
NAME = f"events.out.tfevents.1790000000.{socket.gethostname()}.{os.getpid()}"
Look = Callable[[], list[object]]


def record(event: bytes) -> bytes:
    """A record of TFRecord, without checksums."""
    return struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """The values that are new since the last call; this process is rank 3."""
    lines: list[bytes] = []
    files = MetricFiles(
        Loop(lambda: None), lambda: {os.getpid(): 3}, [str(tmp_path)], time.time() - 5, lines.append
    )

    def new() -> list[object]:
        files.finish()
        found = [json.loads(line) for line in b"".join(lines).splitlines()]
        lines.clear()
        return found

    return new


def test_event_files_are_read_as_they_grow_also_in_pieces(look: Look, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "runs" / "now"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1790000000.host.1.0").write_bytes(EVENTS)  # of another process
    (folder / f"events.out.tfevents.1790000000.other-host.{os.getpid()}.0").write_bytes(EVENTS)
    old = folder / (NAME + ".0")  # of an earlier process with the same number
    old.write_bytes(EVENTS)
    os.utime(old, (1, 1))
    with open(folder / (NAME + ".1"), "wb", buffering=0) as file:
        assert look() == []
        found: list[object] = []
        for at in range(0, len(EVENTS), 50):
            file.write(EVENTS[at : at + 50])
            found += look()
    assert repr(found[:2]) == repr(LOSSES[:2])
    (last, new) = found[2:]
    assert last == [3, 20, 0, {"train/loss": pytest.approx(0.1)}]
    assert new == [3, 300000, 0, {"new": 7.0}]
    assert look() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 100,
        b"\xff" * 100,
        record(b"\xff" * 3),
        # a step of 100 bytes, and a value
        record(b"\x10" + b"\xff" * 99 + b"\x01" + EVENTS[109:130]),
        record(b"\x10\x01\xff"),
    ],
)
def test_other_bytes_are_no_values_and_no_error(look: Look, tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert look() == []
    (tmp_path / NAME).write_bytes(EVENTS[:200] + content)
    assert repr(look()[:2]) in ("[]", repr(LOSSES[:2]))


def test_values_behind_many_images_are_read_at_the_end(look: Look, tmp_path: Path) -> None:
    image = record(b"\x0a\xff\xff\x1f" + bytes(2**19 - 1))
    (tmp_path / NAME).write_bytes(image * 5 + EVENTS)
    assert len(look()) == 4


def test_files_of_runs_below_a_run_have_names_of_their_own(look: Look, tmp_path: Path) -> None:
    """`SummaryWriter.add_scalars` writes one tag to a file per name, each
    in a folder below its own.
    """
    for folder in ("runs/now/both_a", "runs/now/both_b", "runs/now"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / (NAME + ".0")).write_bytes(EVENTS)
    names = {name for line in look() if isinstance(line, list) for name in line[-1]}
    assert {"train/loss", "both_a/train/loss", "both_b/train/loss"} <= names


def test_a_file_below_both_folders_is_read_once(tmp_path: Path) -> None:
    lines: list[bytes] = []
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    folders = [str(tmp_path), str(tmp_path / "link")]
    files = MetricFiles(
        Loop(lambda: None), lambda: {os.getpid(): 3}, folders, time.time() - 5, lines.append
    )
    (tmp_path / "out" / NAME).write_bytes(EVENTS)
    (tmp_path / "out" / "metrics.csv").write_text("step,loss\n1,2\n")
    files.finish()
    assert len(b"".join(lines).splitlines()) == 5


def test_a_long_table_is_read_to_its_end_also_with_a_new_column(look: Look, tmp_path: Path) -> None:
    rows = "".join(f"{n},{n / 8}\n" for n in range(30_000))
    table = tmp_path / "metrics.csv"
    table.write_text("step,loss\n" + rows)
    assert look() == [[None, n, 0, {"loss": n / 8}] for n in range(30_000)]
    table.write_text("step,loss,acc\n" + rows[: len(rows) // 2])  # it is being written
    assert look() == []
    table.write_text("step,loss,acc\n" + rows.replace("\n", ",\n") + "30000,1,2\n")
    assert look() == [[None, 30000, 0, {"loss": 1, "acc": 2}]]


def test_a_row_of_many_columns_makes_lines_that_the_server_reads(tmp_path: Path) -> None:
    lines: list[bytes] = []
    files = MetricFiles(Loop(lambda: None), dict, [str(tmp_path)], time.time() - 5, lines.append)
    names = [f"layer_{n}/gradient_norm" for n in range(500)]
    (tmp_path / "metrics.csv").write_text(f"step,{','.join(names)}\n1{',2' * 500}\n")
    files.finish()
    found = b"".join(lines).splitlines()
    assert max(map(len, found)) <= 4000
    assert [name for line in found for name in json.loads(line)[3]] == names


def test_a_table_is_read_row_by_row_also_when_it_gets_a_column(look: Look, tmp_path: Path) -> None:
    table = tmp_path / "lightning_logs" / "version_0" / "metrics.csv"
    table.parent.mkdir(parents=True)
    table.write_text("epoch,step,train_loss\n0,49,0.25\n0,99,")
    assert look() == [[None, 49, 0, {"train_loss": 0.25}]]
    table.write_text("epoch,step,train_loss,val_loss\n0,49,0.25,\n0,99,0.125,\n0,99,,nan\n0,x,?\n")
    assert repr(look()) == repr(
        [[None, 99.0, 0, {"train_loss": 0.125}], [None, 99.0, 0, {"val_loss": float("nan")}]]
    )
    assert look() == []
    with table.open("a") as file:
        file.write("1,149," + "9" * 200_000 + ",\n")  # more than a field may have
    assert look() == []


def test_old_tables_two_tables_and_pipes_are_left_alone(look: Look, tmp_path: Path) -> None:
    rows = "step,loss\n1,2\n"
    for folder in ("old", "a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "old" / "metrics.csv").write_text(rows)
    os.utime(tmp_path / "old", (1, 1))
    os.mkfifo(tmp_path / "a" / "metrics.csv")
    assert look() == []
    (tmp_path / "b" / "metrics.csv").write_text(rows)
    assert look() == []


def test_two_new_tables_are_of_two_jobs(look: Look, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.csv").write_text("step,loss\n1,2\n")
    assert look() == []


def test_times_at_which_checkpoints_are_written(tmp_path: Path) -> None:
    lines: list[bytes] = []
    since = time.time() - 100
    files = MetricFiles(Loop(lambda: None), dict, [], since, lines.append, str(tmp_path))
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    for name, at in (
        ("a.pt", 10),
        ("b.pt", 10.05),
        ("old.pt", -5),
        ("train.log", 20),
        (NAME, 30),
        ("c.pt", 40),
    ):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (since + at, since + at))
    files.finish()
    files.finish()
    (line,) = lines
    assert json.loads(line) == [
        None,
        "written",
        [pytest.approx(since + 10, abs=0.1), pytest.approx(since + 40, abs=0.1)],
    ]
