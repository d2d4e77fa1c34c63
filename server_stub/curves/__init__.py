"""Finds the metrics and the progress of jobs in what their ranks print.

    api.jobs -> reader (reads logs, keeps curves in memory and beside the log) -> tracker, lag,
    goodput (pure)

`launcher_protocol.printed_metrics` reads one line, `tracker` makes curves and progress of the
readings of one worker, `lag` finds the slow rank, and `goodput` splits the time of a job. Curves
and progress are derived from the logs: nothing is lost while the server is down, jobs of earlier
versions have curves too, and a lost file of curves is made again.
"""
