"""Serves the logs of jobs from the segment files of worker launchers; no log is held in memory.

    api.logs -> stream -> hub, starts, merge, render -> records -> segments
                          hub -> file_events

`server_stub.app` makes one `LogHub`, `server_stub.http.api.logs` asks it for streams. What a job is and where its files
lie comes in through `LogSource`, so that nothing here knows the service, the database or a runtime.
"""

from server_stub.logs.hub import LogHub, LogSource
from server_stub.logs.query import LoggedJob, LogQuery
from server_stub.logs.stream import stream

__all__ = ["LogHub", "LogQuery", "LogSource", "LoggedJob", "stream"]
