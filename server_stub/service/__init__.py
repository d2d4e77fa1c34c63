"""The server without HTTP. Import from here; the modules inside are private to the package."""

from server_stub.service.service import Service
from server_stub.store.rows import JobFilters

__all__ = ["JobFilters", "Service"]
