"""The local server that tests share, and an empty folder of the user's."""

import pytest

from client_lib.client import Client
from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]


@pytest.fixture(autouse=True)
def _local(client: Client) -> None:
    """Every test here talks to the local server."""
