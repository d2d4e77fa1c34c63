"""Requests and answers of released clients and servers: recorded at the release, replayed by all
later versions.
"""
