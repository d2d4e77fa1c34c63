"""What workers elsewhere (pods) say to this server: who they are, how far they are, their logs, reports and results.

A runtime whose workers run on other machines opens an attempt at the `WorkerDesk`, gives its token to the pods, and
looks at what they said; `server_stub.api.workers` lets them say it. All that is said lands on disk where the local
runtime has it (`worker_dir`), so that logs, results and failure reports are read in one way. What it means is decided
by the runtime. The rooms: `desk` (the door for both), `attempt` (one open attempt), `worker` (one of its workers),
`views` (values, and what a worker may do next), `log_file` (the log, by offset), `tokens`.
"""

from server_stub.workers.desk import WorkerDesk
from server_stub.workers.views import Gang, WorkerView

__all__ = ["Gang", "WorkerDesk", "WorkerView"]
