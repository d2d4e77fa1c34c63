"""Enums that scripts of the platform use, and the variables that it sets in its notebooks.

The enums are all str, so that JSON and f-strings give the value. The variables never choose a
server: that is CLIENT_LIB_ENDPOINT, or the configuration file.
"""

import os

from client_lib.spec import job as spec
from client_lib.spec.states import TextEnum

JobHealthAction = spec.HealthAction
JobHealthParams = spec.HealthParams
JobHealthSubAction = spec.HealthSubAction


class ClusterType(TextEnum):
    """MT trains, INF infers; only training is here."""

    MT = "MT"
    INF = "INF"


class RegionEnum(TextEnum):
    """Regions for training. A job may name any other as text."""

    DGX2_MT = "DGX2-MT"
    A100_MT = "A100-MT"
    SR002_MT = "SR002-MT"
    SR003 = "SR003"
    SR004 = "SR004"
    SR005 = "SR005"
    SR006 = "SR006"
    SR008 = "SR008"
    SR009 = "SR009"
    CCE_MT = "CCE-MT"
    A100 = "A100"


RegionMT = RegionEnum


class Environment:
    """The variables as they are now; None: not set. After a change assign a new object to
    `client_lib.environment`.
    """

    def __init__(self) -> None:
        get = os.environ.get
        self.GW_API_ADDR = get("GWAPI_ADDR")
        self.GW_API_KEY = get("GWAPI_KEY")
        self.GWAPI_V2_URL = get("GWAPI_V2_URL")
        self.CLUSTER_KEY = get("CLUSTER_KEY")
        self.NB_PREFIX = get("NB_PREFIX")
        # of `/ns/ai0001011-05040/lab` or `/ns/notebook/ai01.../lab`
        parts = (self.NB_PREFIX or "").split("/")[2:]
        self.NAMESPACE = (
            get("NAMESPACE") or next((part for part in parts if part != "notebook"), "") or None
        )
        self.WORKSPACE_ID = get("WORKSPACE_ID")

    def __repr__(self) -> str:
        # the key is a secret
        return f"Environment(NAMESPACE={self.NAMESPACE!r}, WORKSPACE_ID={self.WORKSPACE_ID!r})"


environment = Environment()
