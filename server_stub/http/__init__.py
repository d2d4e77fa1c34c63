"""The HTTP layer: access log, authentication, limits, and the two REST APIs below `api`."""
