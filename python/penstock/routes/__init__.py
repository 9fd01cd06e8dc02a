"""Interface between the HTTP server and the routes of all parts."""
