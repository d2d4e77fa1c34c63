"""Fixtures of drills: a client of the local server, and a folder of temporary files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_lib
from client_lib.client import Client
from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]


@pytest.fixture
def temporary(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, in which no drill leaves anything behind. Jobs of drills are
    removed at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    # the folder is kept by `tempfile` since its first use, whatever TMPDIR says
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    for job in client_lib.list_jobs(client=client):
        if "drill" in job.spec.labels:
            job.delete(force=True)
    assert not list(folder.glob("client-lib-drill-*"))
