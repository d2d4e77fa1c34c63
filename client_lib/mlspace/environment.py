"""The variables that the platform sets in its notebooks, as tools read them from `client_lib.environment`.

They never choose a server: that is CLIENT_LIB_ENDPOINT, or the configuration file.
"""

from __future__ import annotations

import os


class Environment:
    """What the variables are now; None: not set. Assign a new one to `client_lib.environment` after changing them."""

    def __init__(self) -> None:
        get = os.environ.get
        self.GW_API_ADDR = get("GWAPI_ADDR")
        self.GW_API_KEY = get("GWAPI_KEY")
        self.GWAPI_V2_URL = get("GWAPI_V2_URL")
        self.CLUSTER_KEY = get("CLUSTER_KEY")
        self.NB_PREFIX = get("NB_PREFIX")
        self.NAMESPACE = get("NAMESPACE") or _namespace_of(self.NB_PREFIX or "")
        self.WORKSPACE_ID = get("WORKSPACE_ID")

    def __repr__(self) -> str:
        return f"Environment(NAMESPACE={self.NAMESPACE!r}, WORKSPACE_ID={self.WORKSPACE_ID!r})"  # the key is a secret


def _namespace_of(prefix: str) -> str | None:
    """`ai0001011-05040` of `/ns/ai0001011-05040/lab` and of `/ns/notebook/ai0001011-05040/lab`."""
    parts = prefix.split("/")[2:]
    if parts and parts[0] == "notebook":
        parts = parts[1:]
    return parts[0] or None if parts else None


environment = Environment()
