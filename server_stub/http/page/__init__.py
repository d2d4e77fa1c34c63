"""The pages for browsers: `routes` answers requests, `views` decides what a page shows, `templates` has the HTML. What
scripts ask for is the public REST API alone."""

_PATHS = ("/login", "/logout", "/jobs/", "/static/")


def is_page(path: str) -> bool:
    """True for the paths of pages; this loads nothing of them."""
    return path == "/" or path.startswith(_PATHS)
