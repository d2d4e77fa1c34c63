"""Serves the logs of jobs from the segment files that worker launchers write; no log is held in memory.

    api.logs -> stream -> outlet | hub | history -> starts, merge, render (pure or plain file reading) -> segments
                          hub -> file_events

`server_stub.app` makes one `LogHub`, `server_stub.api.logs` asks it for streams. What a job is and where its files lie
comes in through `LogSource`, so that nothing here knows the service, the database or a runtime.
"""

from server_stub.logs.hub import LogHub
from server_stub.logs.outlet import Outlet
from server_stub.logs.query import LogQuery, parse_query
from server_stub.logs.source import JobLogs, LogSource
from server_stub.logs.stream import stream

__all__ = ["JobLogs", "LogHub", "LogQuery", "LogSource", "Outlet", "parse_query", "stream"]
