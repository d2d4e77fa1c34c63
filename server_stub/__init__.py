"""The REST service of `client_lib`: accepts jobs, runs them on a runtime,
keeps their state and logs.
"""
