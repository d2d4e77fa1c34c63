"""`/public/v2`: the REST API of the ML Space platform, on the same service as `/api/v1`.

    application   the routes with their layers, error responses and authentication
    jobs, catalogue   one module per group of paths; jobs also knows the folders in which code may lie
    translate     the bodies of requests and responses, and their translation from and to our form; pure

It is imported at its first request: most servers never need it. A comment that begins with "Platform:" describes a
peculiarity that the platform's clients depend on. Statuses and dates are in `client_lib.spec.mlspace`.
"""
