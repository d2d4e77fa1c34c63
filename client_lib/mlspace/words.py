"""Enums that scripts of the platform name; all are str, so that JSON and f-strings give the value."""

from __future__ import annotations

from enum import Enum

from client_lib.spec.job import HealthAction as JobHealthAction
from client_lib.spec.job import HealthParams as JobHealthParams
from client_lib.spec.job import HealthSubAction as JobHealthSubAction

__all__ = ["ClusterType", "JobHealthAction", "JobHealthParams", "JobHealthSubAction", "RegionEnum", "RegionMT"]


class ClusterType(str, Enum):
    """MT trains, INF infers; only training is here."""

    MT = "MT"
    INF = "INF"

    __str__ = str.__str__


class RegionEnum(str, Enum):
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

    __str__ = str.__str__


RegionMT = RegionEnum
