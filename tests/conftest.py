"""For every test."""

from __future__ import annotations

import signal

pytest_plugins = ["tests.cluster.fixtures"]


def pytest_configure() -> None:
    """A shell that runs us in the background has SIGINT ignored, and all that we start would inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
