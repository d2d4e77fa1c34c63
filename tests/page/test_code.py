"""The code of a job on its page, what differs between two jobs, and the page
of the server. Plain HTTP.
"""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.reports import difference
from client_lib.spec import paths
from client_lib.spec.states import Reason
from server_stub.files.snapshot_files import read_files
from server_stub.http.page import routes
from tests.http.conftest import Running
from tests.http.test_provenance import submitted
from tests.kit.waiting import until
from tests.page.conftest import Visitor, new_job

Visit = Callable[[Any, str], Visitor]


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_py", ".py"))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def of_snapshot(
    server: Running,
    name: str,
    packed: bytes,
    user: str = "ann",
    root: str = "/home/ann/<b>",
    **spec: Any,
) -> None:
    """A job of this code."""
    digest = hashlib.sha256(packed).hexdigest()
    assert server.as_user(user)("PUT", paths.snapshot(digest), data=packed).status_code in (
        200,
        201,
    )
    facts = {"root": root, "script": "train.py", "files": 3, "size": len(packed)}
    code = {"mode": "snapshot", "sha256": digest, **facts}
    answer = server.as_user(user).submit(
        code=code, name=name, script="train.py", type="pytorch2", **spec
    )
    assert answer.status_code == 201, answer.text


def test_the_files_of_a_snapshot_are_listed_and_shown_as_text(
    server: Running, visit: Visit
) -> None:
    of_snapshot(
        server,
        "train",
        archive(train_py=b"<script>1</script>", data__x=b"\0\1", big=b"x" * 300_000),
    )
    visitor = visit(server, "ann")
    assert 'href="../jobs/train/code?owner=ann"' in visitor.get("/jobs/train").text
    page = visitor.get("/jobs/train/code").text
    assert "&lt;script&gt;1&lt;/script&gt;" in page, "the script is shown first"
    assert 'href="?owner=ann&amp;file=data/x"' in page
    for name in ("data/x", "big"):
        assert "is no text, or too long" in visitor.get(f"/jobs/train/code?file={name}").text
    for path in ("/jobs/train/code?file=../../etc/passwd", "/jobs/none/code"):
        assert visitor.get(path).status_code == 404
    assert visit(server, "ben").get("/jobs/train/code?owner=ann").status_code == 404
    assert "&lt;script&gt;1" in visit(server, "root").get("/jobs/train/code?owner=ann").text


def test_code_that_cannot_be_read_says_why(server: Running, visit: Visit) -> None:
    of_snapshot(server, "train", b"no archive")
    answer = visit(server, "ann").get("/jobs/train/code")
    assert answer.status_code == 422
    assert "can&#39;t be shown: it is damaged" in answer.text


def test_a_file_whose_name_is_no_text_is_shown_and_compared(server: Running, visit: Visit) -> None:
    for name, content in (("first", b"one"), ("second", b"two")):
        of_snapshot(server, name, archive(**{"caf\udce9_py": content}))
    visitor = visit(server, "ann")
    assert 'href="?owner=ann&amp;file=caf%3F.py"' in visitor.get("/jobs/first/code").text
    assert ">one</pre>" in visitor.get("/jobs/first/code?owner=ann&file=caf%3F.py").text
    assert "+two" in visitor.get("/jobs/second/difference?with=first").text


def test_lines_of_large_files_are_not_compared(server: Running, visit: Visit) -> None:
    for name in ("first", "second"):
        last = name.encode() + b"\n"
        large, small = (last.rjust(size, b".") for size in (2**16 + 1, 2**16))
        long = b"x\n" * 5001 + last  # short lines take the longest
        of_snapshot(server, name, archive(large=large, small=small, long=long))
    page = visit(server, "ann").get("/jobs/second/difference?with=first").text
    assert "+65537 bytes with digest" in page
    assert page.count("lines are not compared: longer than 64 KiB or 5000 lines") == 4
    assert "65536 bytes" not in page
    assert "...second\n</span>" in page


@pytest.mark.parametrize(
    ("count", "said"), [(51, "1 more file that differs:"), (52, "2 more files that differ:")]
)
def test_files_beyond_those_that_a_page_compares_are_counted(
    server: Running, visit: Visit, count: int, said: str
) -> None:
    for name in ("first", "second"):
        of_snapshot(server, name, archive(**{f"file{n}": name.encode() for n in range(count)}))
    page = visit(server, "ann").get("/jobs/second/difference?with=first").text
    assert page.count('"added">+second') == 50
    assert said in page


def test_archives_are_read_and_compared_in_threads_of_their_own(
    server: Running, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def recorded(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            seen.add((work.__name__, threading.current_thread().name.rpartition("_")[0]))
            return work(*args)

        return call

    # the threads of the work show in no page
    monkeypatch.setattr(routes, "read_files", recorded(read_files))
    monkeypatch.setattr(difference, "compare", recorded(difference.compare))
    for name in ("first", "second"):
        of_snapshot(server, name, archive(train_py=name.encode()))
    assert visit(server, "ann").get("/jobs/second/difference?with=first").status_code == 200
    assert seen == {("read_files", "code"), ("compare", "code")}


def test_a_job_in_place_shows_its_commit_and_changes(server: Running, visit: Visit) -> None:
    assert submitted(server.as_user("ann"), diff="+added <b>").status_code == 201
    page = visit(server, "ann").get("/jobs/train/code").text
    assert "c0ffee" in page
    assert '<span class="added">+added &lt;b&gt;' in page


def test_a_job_in_place_names_the_folder_of_its_script(
    server: Running, visit: Visit, tmp_path: Path
) -> None:
    nonce, script, data = "n" * 32, tmp_path / "train.py", tmp_path / "data"
    script.touch()
    data.mkdir()
    (tmp_path / "proof").write_text(nonce)
    code = {"mode": "in_place", "proof": {"path": str(tmp_path / "proof"), "nonce": nonce}}
    user, spec = (
        server.as_user("ann"),
        {"type": "pytorch2", "script": str(script), "working_dir": str(data)},
    )
    answer = user.submit(code=code, name="train", **spec)
    assert answer.status_code == 201, answer.text
    page = visit(server, "ann").get("/jobs/train/code").text
    assert f"its code is what <code>{tmp_path}</code> has today" in page


def test_what_changed_between_two_jobs(server: Running, visit: Visit) -> None:
    of_snapshot(server, "first", archive(train_py=b"a\nb\n", same=b"x"), args=["--lr", "0.1"])
    of_snapshot(
        server, "second", archive(train_py=b"a\nc\n", same=b"x", new=b"\0"), args=["--lr", "<b>"]
    )
    visitor = visit(server, "ann")
    page = visitor.get("/jobs/second/difference?with=first&owner=ann").text
    for text in (
        "args: --lr 0.1 -&gt; --lr &#39;&lt;b&gt;&#39;",
        '"removed">-b',
        '"added">+c',
        "bytes with digest",
    ):
        assert text in page, text
    assert "same" not in page.split("<h1>")[1]
    assert (
        "Nothing that is recorded differs" in visitor.get("/jobs/first/difference?with=first").text
    )
    alone = visitor.get("/jobs/first/difference")
    assert (alone.status_code, "first has not failed" in alone.text) == (200, True)
    root = visit(server, "root").get("/jobs/first/difference?owner=ann")
    assert 'href="../../jobs/first?owner=ann"' in root.text, "there is a way back"
    assert visitor.get("/jobs/first/difference?with=none").status_code == 404
    assert (
        visit(server, "ben").get("/jobs/first/difference?with=second&owner=ann").status_code == 404
    )


def test_several_jobs_are_compared_with_one(server: Running, visit: Visit) -> None:
    for name, lr in (("first", "0.1"), ("second", "0.2"), ("third", "0.3")):
        of_snapshot(server, name, archive(train_py=b"a"), args=["--lr", lr])
    visitor = visit(server, "ann")
    page = visitor.get("/jobs/third/difference?with=first&with=second").text
    assert page == visitor.get("/jobs/third/difference?with=first,%20second").text
    for text in (
        "fields since first",
        "args: --lr 0.1 -&gt; --lr 0.3",
        "fields since second",
        "args: --lr 0.2 -&gt; --lr 0.3",
        'name="with" value="first, second"',
    ):
        assert text in page, text
    assert page.count("since first") == 1
    assert visitor.get("/jobs/third/difference?with=first&with=none").status_code == 404
    too_many = visitor.get("/jobs/third/difference?with=" + ",".join("abcdefghi"))
    assert (too_many.status_code, "at most 8 jobs" in too_many.text) == (422, True)


def test_a_job_that_never_succeeded_says_that_there_is_nothing_to_compare(
    server: Running, visit: Visit
) -> None:
    made = new_job(server, "ann", name="lonely")
    server.call(lambda: server.runtime.runs(made["id"]))
    server.call(lambda: server.runtime.end(made["id"], Reason.EXIT_CODE, "no"))
    visitor = visit(server, "ann")
    until(lambda: "lonely FAILED" in visitor.get("/jobs/lonely").text)
    page = visitor.get("/jobs/lonely/difference").text
    assert "No earlier run of this script has succeeded" in page


def test_the_server_shows_checks_instance_types_and_figures(server: Running, visit: Visit) -> None:
    new_job(server, "ann", name="train")
    data_dir = str(server.settings.data_dir)
    for user, sees in (("ann", False), ("root", True)):
        page = visit(server, user).get("/server").text
        assert (data_dir in page) is sees
        for text in ("Checks", "database", "Instance types", "jobs pending</dt><dd", "free disk"):
            assert text in page, text
    assert Visitor(server.url).get("/server").status_code == 401
