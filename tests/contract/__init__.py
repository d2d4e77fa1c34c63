"""One suite of promises against every runtime: each test runs on this
machine and on a real cluster.
"""
