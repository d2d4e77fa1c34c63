"""The virtual environments that hold `mls`, one per version: they share a package name."""

from pathlib import Path

from tests.kit import environments

VERSIONS = {"1.3": "1.3.0", "0.10": "0.10.0"}


def environment(version: str) -> Path:
    """The environment's folder."""
    return environments.environment(f"mls-{version}")
