"""Functions as jobs: what is called (`call`), how it travels (`payload`), what comes back (`results`)."""
