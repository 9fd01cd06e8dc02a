"""Control groups of runs, and the use of processors."""
