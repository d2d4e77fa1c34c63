"""Functions as jobs, where they are submitted: what is called (`call`), how it travels (`payload`, `pickling`, `path`),
what comes back (`results`). `job` and `submission` use it; what happens in a rank: `client_lib.worker.function_runner`.
"""
