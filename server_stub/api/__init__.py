"""HTTP in, service calls, HTTP out: one module per group of paths of `/api/v1`. Only `server_stub.app` imports it.

`context` gives a handler what it works with; `answers` makes responses and errors; nothing here decides about jobs.
"""
