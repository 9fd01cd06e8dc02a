"""The runner itself: agents of nodes, the scheduling loop, its journal, and the files of a run."""
