"""What tests of several folders share: servers, fakes, waits, machines with faults. README.md of
`tests` lists all of it.
"""
