"""The HTTP side: a trace's page with zoom down to every request, on this machine only."""
