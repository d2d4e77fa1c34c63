"""The handlers of `/api/v1`, one module per group of paths; the platform's API is in `public_v2`.

`context` has the dependencies of handlers, `answers` the responses and errors. Decisions about jobs
are the service's.
"""
