"""Helpers of tests in several folders: servers, fakes, waits, machines with faults. README.md of
`tests` lists all of it.
"""
