"""`/public/v2`: the REST API of the ML Space platform, translated onto the same service as `/api/v1`.

    application   the routes, who may ask, how errors look
    auth, jobs, logs, catalogue   one module per group of paths
    requests, answers             shapes, and nothing else
    translate, text               from their words to ours and back; pure
    roots                         where the code of a job may lie

Imported at the first request to it: a server that nobody asks in these words starts without it. Quirks of the platform
that its clients depend on carry a comment that begins with "Platform:". Words, statuses and dates are in
`client_lib.spec.mlspace`.
"""
