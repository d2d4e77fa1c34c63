"""The pages for browsers: `routes` answers requests, `views` decides what a page shows, `templates`
has the HTML. What scripts ask for is the public REST API alone."""
