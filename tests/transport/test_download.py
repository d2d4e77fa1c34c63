"""Downloads from servers that are wrong, hostile, or cut off: nothing outside of the
folder, and no byte twice.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from client_lib import BadResponse, Client
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, CodeSnapshot
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from client_lib.submit.snapshot import packed
from client_lib.transport.code_download import texts_of_code
from client_lib.transport.download import Progress, download
from tests.kit.odd_server import OddServer, http

Start = Callable[..., OddServer]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
BODY = bytes(range(256)) * 40
JOB = JobInfo(
    id="0",
    name="train",
    owner="ann",
    version=1,
    runtime="local",
    state=State.SUCCEEDED,
    reason=Reason.COMPLETED,
    spec=JobSpec(script="/train.py"),
    code=CodeInPlace(),
    created_at=NOW,
)


def listing(path: str) -> bytes:
    file = {
        "path": path,
        "size": len(BODY),
        "sha256": hashlib.sha256(BODY).hexdigest(),
        "attempt": 1,
        "worker": 0,
    }
    answer = {"files": [{**file, "modified_at": NOW.isoformat()}], "final": True}
    return http("200 OK", json.dumps(answer).encode())


@pytest.mark.parametrize(
    "path",
    ["../mine", "/etc/mine", "out/../../mine", "..", ".", "", "out//mine", "out/", "mine\0.pt"],
)
def test_a_name_that_leads_out_of_the_folder_is_refused_before_anything_is_written(
    odd_server: Start, tmp_path: Path, path: str
) -> None:
    odd = odd_server(listing(path), http("200 OK", BODY))
    with pytest.raises(BadResponse, match="no file below a folder; nothing was written"):
        download(Client(odd.url, token="t", retry_s=0), JOB, tmp_path / "here", None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("heeds_the_range", [True, False])
def test_a_transfer_that_breaks_off_goes_on_where_it_was_cut(
    odd_server: Start, tmp_path: Path, heeds_the_range: bool
) -> None:
    got = len(BODY) // 2
    cut = http("200 OK", BODY)[: got - len(BODY)]
    rest = http("206 Partial Content", BODY[got:]) if heeds_the_range else http("200 OK", BODY)
    odd = odd_server(listing("model.pt"), cut, rest)
    seen: list[Progress] = []
    download(Client(odd.url, token="t", retry_s=10), JOB, tmp_path, None, seen.append)
    assert (tmp_path / "model.pt").read_bytes() == BODY
    assert [request.headers.get("Range") for request in odd.requests] == [
        None,
        None,
        f"bytes={got}-",
    ]
    assert seen[-1] == Progress(1, 1, len(BODY), len(BODY))


def test_a_file_may_have_the_longest_name_that_there_is(odd_server: Start, tmp_path: Path) -> None:
    name = "я" * 126 + ".pt"  # 255 bytes
    odd = odd_server(listing(name), http("200 OK", BODY))
    assert download(Client(odd.url, token="t", retry_s=0), JOB, tmp_path, None) == [tmp_path / name]


def test_two_downloads_of_one_file_at_once(odd_server: Start, tmp_path: Path) -> None:
    odd = odd_server(
        listing("model.pt"), http("200 OK", BODY), listing("model.pt"), http("200 OK", BODY)
    )
    client = Client(odd.url, token="t", retry_s=0)

    def other(now: Progress) -> None:
        if len(odd.requests) == 2 and now.size:
            download(client, JOB, tmp_path, None)

    assert download(client, JOB, tmp_path, None, other) == [tmp_path / "model.pt"]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [BODY]


def test_an_answer_that_is_too_short_and_not_cut_is_no_reason_to_ask_for_ever(
    odd_server: Start, tmp_path: Path
) -> None:
    odd = odd_server(listing("model.pt"), http("200 OK", b""))
    with pytest.raises(BadResponse, match="has the digest"):
        download(Client(odd.url, token="t", retry_s=0), JOB, tmp_path, None)
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_that_breaks_off_is_fetched_again(odd_server: Start, folder: Path) -> None:
    (folder / "train.py").write_text("pass\n")
    with packed(folder) as archive:
        code = CodeSnapshot(sha256=archive.sha256, root=str(folder))
        body = archive.path.read_bytes()
    odd = odd_server(http("200 OK", body)[:-3], http("200 OK", body))
    assert texts_of_code(Client(odd.url, token="t", retry_s=10), code) == {"train.py": "pass\n"}
    assert len(odd.requests) == 2
