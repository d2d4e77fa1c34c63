"""Serves the logs of jobs from the segment files of worker launchers; no log is held in memory.

    http.api.jobs -> stream -> hub -> render, segments -> records

The states of a job come from a function of the service, so that no module here imports it or the
database.
"""
