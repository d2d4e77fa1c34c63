"""The server without HTTP. Import from here; the modules inside are private to the package."""

from server_stub.service.service import Service
from server_stub.service.values import JobFilters, JobOutputs, JobSearch, JobText

__all__ = ["JobFilters", "JobOutputs", "JobSearch", "JobText", "Service"]
