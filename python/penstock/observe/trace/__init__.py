"""observe/trace."""
