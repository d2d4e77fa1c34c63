"""Serves the logs of jobs from the segment files of worker launchers; no log is held in memory.

    api.jobs -> stream -> hub -> render, segments -> records

`server_stub.serve` makes one `LogHub`, `server_stub.http.api.jobs` asks it for streams. The states of a job come
from a function of the service, so that no module here imports the service or the database.
"""
