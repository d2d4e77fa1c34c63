"""The agent: process 1 of a pod. It plays the runtime's part on the spot, for a server that is somewhere else.

It claims the worker's place, fetches the code, starts the launcher as its child, and tells the server what that says;
it sends the log by offset, keeps it in a spool while the server is away, and leaves when everything is delivered.
Started as `python3 worker.pyz pod`. Who decides anything is the server (server_stub.workers).

    agent    from the claim to the exit code; the main thread, and the only one that decides
    place    what lies where, and what the pod was told             fill, digest    pure
    link     to the server: orders, report, results  (server: HTTP)
    peers    the same between the pods alone, where no server can be reached  (gate: worker 0's port)
    child    the launcher                  spool, shipper, printer    its log, to the server and to stdout

Standard library only, Python >= 3.8.
"""
