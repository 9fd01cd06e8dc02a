"""What a trace says on a terminal: while it runs, at its end, beside another."""
