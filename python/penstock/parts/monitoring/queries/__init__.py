"""Questions to experiments and servers, and answers as tables."""
