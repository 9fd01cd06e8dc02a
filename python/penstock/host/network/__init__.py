"""Network namespaces, links and sockets of the host."""
