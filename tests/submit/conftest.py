"""The local server that tests share, for a user with a configuration of its own."""

from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]
