"""A real local server that the tests of this folder share, and an empty folder of the user's."""

from tests.functions.conftest import client, folder, state

__all__ = ["client", "folder", "state"]
