"""What differs between two jobs, as text."""

from typing import Any

from client_lib.reports.difference import Ran, compare
from client_lib.spec.request import CodeInPlace
from client_lib.spec.wire import JobInfo, JobProvenance


def ran(
    name: str, texts: dict[str, str] | None = None, sha256: str = "0" * 64, **found: Any
) -> Ran:
    spec = {"script": "train.py", "env_variables": {"API_TOKEN": name}, **found.pop("spec", {})}
    usual = {
        "id": "0" * 32,
        "owner": "ann",
        "version": 1,
        "runtime": "local",
        "state": "FAILED",
        "reason": "ExitCode",
    }
    code = {"mode": "in_place", "sha256": sha256}
    if texts:
        code |= {"mode": "snapshot", "root": "/home/ann"}
    info = {**usual, "name": name, "spec": spec, "code": code, "created_at": "2026-11-22T10:00:00Z"}
    return Ran(JobInfo.model_validate(info), JobProvenance.model_validate(found), texts=texts or {})


def machine(**packages: str) -> list[dict[str, Any]]:
    return [
        {"worker": worker, "hardware": {"cpu": "x"}, "packages": packages} for worker in range(2)
    ]


def test_values_are_listed_by_part_and_secrets_are_masked() -> None:
    before = ran(
        "a",
        machines=machine(numpy="1", gone="1"),
        images=["x@sha256:1"],
        spec={"instance_type": "cpu.1C.1G"},
    )
    after = ran(
        "b",
        machines=machine(numpy="2", new="1"),
        images=["x@sha256:2"],
        spec={"instance_type": "cpu.2C.2G"},
    )
    found = compare(before, after)
    assert found.parts == {
        "fields": [
            "env_variables: API_TOKEN=*** -> API_TOKEN=***",
            "instance_type: cpu.1C.1G -> cpu.2C.2G",
        ],
        "packages": ["gone: 1 -> none", "new: none -> 1", "numpy: 1 -> 2"],
        "hardware": ["image: x@sha256:1 -> x@sha256:2"],
    }
    assert "packages:\n    gone: 1 -> none\n" in str(found)
    assert "; packages gone: 1 -> none, new" in found.sentence()


def test_what_is_known_of_one_job_alone_is_left_out() -> None:
    plain: dict[str, Any] = {"spec": {"env_variables": {}}}
    found = compare(ran("a", **plain), ran("b", machines=machine(numpy="2"), images=["x"], **plain))
    assert (found.parts, found.files, found.sentence()) == ({}, {}, "")


def test_a_script_that_has_changed_is_named_by_its_digest_where_no_patch_is_known() -> None:
    same: dict[str, Any] = {"spec": {"env_variables": {}}}
    found = compare(ran("a", **same), ran("b", sha256="1" * 64, **same))
    assert (
        found.sentence()
        == "changed since a, which succeeded: code script: 000000000000 -> 111111111111"
    )


def test_a_long_difference_is_cut_and_counted() -> None:
    spec: dict[str, Any] = {"spec": {"env_variables": {}}}
    before = {f"file{n:02}.py": "" for n in range(20)} | {"long.py": ""}
    after = {name: "x" for name in before} | {"long.py": "x\n" * 1000}
    found = compare(ran("a", before, **spec), ran("b", after, **spec))
    assert found.files["long.py"].splitlines()[-1] == "... 803 more lines"
    assert found.sentence().endswith("file06.py, file07.py and 13 more")
    long = compare(ran("a", **spec), ran("b", spec={"env_variables": {}, "args": ["x" * 100_000]}))
    assert len(long.sentence()) < 300


def changed(name: str, diff: str | None, **more: Any) -> Ran:
    submitted = {"commit": "c" * 40, "diff": diff}
    return ran(name, submitted=submitted, spec={"env_variables": {}}, **more)


def patch(old: str, new: str) -> str:
    return (
        "diff --git a/data.py b/data.py\n--- a/data.py\n+++ b/data.py\n@@ -1 +1 "
        f"@@\n-{old}\n+{new}\n"
    )


def test_uncommitted_changes_of_one_job_are_shown_as_they_are() -> None:
    found = compare(changed("a", ""), changed("b", patch("1", "2")))
    assert found.files == {"data.py": patch("1", "2").rstrip()}
    both = compare(changed("a", patch("1", "2")), changed("b", patch("1", "3")))
    assert both.files["data.py"].splitlines()[-2:] == ["-+2", "++3"]


def test_uncommitted_changes_that_are_unknown_are_not_taken_for_none() -> None:
    found = compare(changed("a", None), changed("b", patch("1", "2")))
    assert (found.files, found.sentence()) == ({}, "")
    assert found.parts == {"not compared": ["a: its uncommitted changes are not recorded"]}
    outside = compare(ran("a", spec={"env_variables": {}}), changed("b", patch("1", "2")))
    assert outside.files == {}


def test_a_snapshot_and_a_job_in_place_are_compared_by_their_uncommitted_changes() -> None:
    packed = changed("b", patch("1", "2"), texts={"train.py": "x", "data.py": "2"})
    assert list(compare(changed("a", ""), packed).files) == ["data.py"]


def test_a_command_that_is_no_file_has_no_digest() -> None:
    command = ran("b", spec={"env_variables": {}})
    command = command._replace(info=command.info.model_copy(update={"code": CodeInPlace()}))
    assert compare(ran("a", spec={"env_variables": {}}), command).parts["code"] == [
        "script: 000000000000 -> none"
    ]


def test_a_line_of_a_file_ends_with_a_line_feed_alone() -> None:
    before = ran("a", {"train.py": "a\x0bb\x0cc\u2028d\r\nsame\n"}, sha256="1" * 64)
    after = ran("b", {"train.py": "a\x0bb\x0cc\u2028D\r\nsame\n"})
    assert compare(before, after).files["train.py"].split("\n")[3:] == [
        "-a\x0bb\x0cc\u2028d",
        "+a\x0bb\x0cc\u2028D",
        " same",
    ]
