"""The REST service behind `client_lib`: accepts jobs, runs them on a runtime, keeps their state and logs."""
