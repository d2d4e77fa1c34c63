"""HTTP to the server: configuration, connections, retries, the REST calls,
the local server, downloads.
"""
