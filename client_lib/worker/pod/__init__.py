"""The agent: process 1 of a pod. It controls the launcher there, for a server on another machine.

It claims the worker, fetches the code, starts the launcher as its child and reports the launcher's state to the server.
It sends the log by offset, keeps it in a spool while the server is unreachable, and exits when everything is delivered.
Started as `python3 worker.pyz pod`. Every decision is the server's (server_stub.worker_gateway).

    agent               from the claim to the exit code; only its main thread decides
    settings            files and variables that the pod was started with, and the plan that they make
    server_channel      states, instructions, report and results, over HTTP
    peer_channel        the same between the pods alone, where no server is reachable (a port of worker 0)
    launcher_process    the launcher
    log_carriers        the log, on its way to the server and to stdout
    threads             what all of them share: threads that survive errors, and the events for the main thread
"""
