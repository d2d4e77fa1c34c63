"""The server's side of workers on other machines (pods): their identity, state, logs, reports and
results.

A runtime opens an attempt in the `WorkerRegistry`, gives the attempt's token to its pods, and reads
the state of each worker as a `WorkerView`; `server_stub.http.api.workers` has the requests of the
pods. Everything that arrives is stored in the files that the local runtime has, too (`worker_dir`),
so logs, results and reports are read in one way. The runtime decides what a state means.
"""
