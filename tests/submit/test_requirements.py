"""The packages that a job asks for: a list, files, or the script's header."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from pydantic import ValidationError

from client_lib import Job
from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeSnapshot, SubmitRequest
from client_lib.submit import request
from client_lib.submit.caller import of_header, requirements_of, requirements_within

HEADER = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "einops>=0.8",
#   "rich",
# ]
# ///
import einops
"""


def test_a_list_stays_as_it_is_and_wins_over_the_header(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEADER)
    assert requirements_of(["a==1", " b "], script, tmp_path) == ["a==1", "b"]
    assert requirements_of([], script, tmp_path) is None


def test_the_header_of_a_script_counts_where_nothing_is_given(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEADER.replace("\n", "\r\n"))
    assert requirements_of(None, script, tmp_path) == ["einops>=0.8", "rich"]
    script.write_text(HEADER, encoding="utf-8-sig")  # as some editors of Windows do
    assert of_header(script) == ["einops>=0.8", "rich"]
    script.write_text("import os\n# /// script\n# dependencies = []\n# ///\n")
    assert of_header(script) is None


@pytest.mark.parametrize(
    ("header", "said"),
    [("dependencies = [", "is not valid TOML"), ('dependencies = "a"', "must be a list of texts")],
)
def test_a_header_that_can_not_be_understood_is_an_error(
    tmp_path: Path, header: str, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"# /// script\n# {header}\n# ///\n")
    with pytest.raises(InvalidRequest, match=said):
        of_header(script)


def test_files_are_read_also_by_each_other_and_once_each(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    given = "a==1  # why\n\n# c\n-r deep/more.txt\nb[x] \\\n  >=2\n--pre\n"
    (tmp_path / "requirements.txt").write_text(given, encoding="utf-8-sig")
    (tmp_path / "deep" / "more.txt").write_text(
        "d @ git+https://host/d.git#egg=d\na==1\n./wheels/e.whl\n"
    )
    wheel = str(tmp_path / "deep" / "wheels" / "e.whl")
    found = requirements_of(["requirements.txt", "f"], None, tmp_path)
    assert found is not None
    assert [" ".join(line.split()) for line in found] == [
        "a==1",
        "d @ git+https://host/d.git#egg=d",
        wheel,
        "b[x] >=2",
        "--pre",
        "f",
    ]
    assert requirements_of(["-r requirements.txt"], None, tmp_path) == found[:-1]


def test_what_lies_in_the_project_is_found_from_the_root_of_its_snapshot(tmp_path: Path) -> None:
    lines = [f"{tmp_path}/wheels/own.whl", "einops", f"{tmp_path}-other/x.whl", "--pre"]
    assert requirements_within(lines, tmp_path) == [
        "./wheels/own.whl",
        "einops",
        f"{tmp_path}-other/x.whl",
        "--pre",
    ]


@pytest.mark.parametrize(
    ("changed", "sent"),
    [
        # unchanged: in the snapshot of the old job
        (["./wheels/own.whl", "einops"], ["./wheels/own.whl", "einops"]),
        (["r.txt"], ["rich"]),
        ([], None),
    ],
)
def test_a_job_that_runs_again_finds_the_packages_of_its_project_in_its_snapshot(
    changed: list[str], sent: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.txt").write_text("rich\n")
    monkeypatch.chdir(tmp_path)
    spec = JobSpec(script="t.py", requirements=["./wheels/own.whl", "einops"])
    stored = SubmitRequest(
        spec=spec, code=CodeSnapshot(sha256="0" * 64, root="/project", script="t.py")
    )

    class Server:
        def runs_here(self) -> bool:
            return False

        def submit_request(self, request: SubmitRequest, _: str) -> SubmitRequest:
            return request

    server: Any = Server()
    again: Any = request.resubmit(
        server, stored, spec.model_copy(update={"requirements": changed}), "key"
    )
    assert again.spec.requirements == sent


def test_a_missing_file_and_one_that_names_itself_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere\.txt can't be read"):
        requirements_of(["-r nowhere.txt"], None, tmp_path)
    (tmp_path / "loop.txt").write_text("-r loop.txt")
    with pytest.raises(InvalidRequest, match="is named by itself"):
        requirements_of(["loop.txt"], None, tmp_path)


def test_one_file_may_be_given_as_it_is(tmp_path: Path) -> None:
    assert Job(script="t.py", requirements="requirements.txt").spec.requirements == [
        "requirements.txt"
    ]
    assert Job(script="t.py", requirements=tmp_path / "r.txt").spec.requirements == [
        str(tmp_path / "r.txt")
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-e .", "can't be used in a worker"),
        ("--target=/usr", "can't be used in a worker"),
        ("a\n-e .", "control character"),
        (" ", "is no requirement"),
        ("--index-url https://user:secret@host/simple", "PIP_INDEX_URL among `secrets`"),
    ],
)
def test_what_means_nothing_in_a_worker_or_would_show_a_password_is_refused(
    line: str, said: str
) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        JobSpec(script="t.py", requirements=[line])
    assert "secret@" not in str(caught.value.errors()[0]["msg"])


words = st.sampled_from(
    [
        "-r",
        "--requirement",
        "--requirement=a",
        "-c",
        "-e",
        "-ra",
        '"-r"',
        "'--target=a'",
        "-\\r",
        "--req=a",
    ]
)
allowed = st.sampled_from(
    ["--pre", "-i", "--index-url=https://host/simple", "--no-index", "  ", "a==1"]
)


@given(
    st.lists(allowed, max_size=3),
    words,
    st.lists(allowed, max_size=3),
    st.sampled_from(["", " ", "   "]),
)
@example(before=[], word="-r", after=["/etc/passwd"], space=" ")
@example(before=["--pre"], word="-r", after=["/etc/passwd"], space="")
def test_an_option_that_reads_files_of_the_worker_is_refused_wherever_it_stands(
    before: list[str], word: str, after: list[str], space: str
) -> None:
    line = space + " ".join([*before, word, *after])
    if line.lstrip().startswith("-"):  # behind a package pip reads it as an option of that package
        with pytest.raises(ValidationError, match="can't be used in a worker"):
            JobSpec(script="t.py", requirements=[line])
