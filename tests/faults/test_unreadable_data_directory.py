"""A data directory of a newer version: the server changes nothing in it, and says what to do."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.conftest import Start

pytestmark = pytest.mark.process


LOCK = "server.lock"
"""Names the process that held the directory last."""


def content(folder: Path) -> dict[str, str]:
    """Digest of each file below a folder but the lock, by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK
    }


def test_a_data_directory_of_a_newer_version_is_left_as_it_is(start: Start, tmp_path: Path) -> None:
    first = start()
    first.facts()
    assert first.submit("kept", "print('kept')").status_code == 201
    first.ended("kept")
    first.end()
    data = tmp_path / "state" / "data"
    with closing(sqlite3.connect(data / "client_lib.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    before = content(data)
    said = start().refused()
    assert "the database is at schema 9999, which is newer than this version knows" in said
    assert "`client-lib serve --state-dir FOLDER`" in said
    assert content(data) == before
