"""Fixtures of drills: a client of the local server."""

from tests.kit.local_server import client, own_configuration

__all__ = ["client", "own_configuration"]
