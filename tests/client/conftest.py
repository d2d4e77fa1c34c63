"""Fixtures of a user with a configuration of its own: the shared local server, and
one with scripted answers.
"""

from tests.kit.local_server import client, folder, own_configuration
from tests.kit.odd_server import odd_server

__all__ = ["client", "folder", "odd_server", "own_configuration"]
