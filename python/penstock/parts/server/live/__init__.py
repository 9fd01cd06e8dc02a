"""Live view: sources that are polled, and the hub that sends changes as server-sent events."""
