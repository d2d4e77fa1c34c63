"""Files, messages and formats that the launcher of a worker and the server share.

    plan, rank_processes       what a worker is to do, and the processes that its plan describes
    directory                  the files of a worker, its lock and its reserve of room
    control, frames            messages on the launcher's socket; frames of a session of the user
    record, log_segments       the format of a log record; the log of a worker on disk
    printed_metrics            the metrics in a printed line
    outcome, exceptions        which rank failed first, and the exception that ended it
    reasons                    why a worker ended
    report, termination        both as JSON, and as the termination message of a container
    archive                    unpacks a code snapshot
    output_globs, output_store   which files of the ranks are kept, and how
    processes                  identifies processes of this machine

Server, client and launcher import this package; it imports `durable` and itself alone. Standard
library only, Python >= 3.8, because the launcher runs with the interpreter of the job.
"""
