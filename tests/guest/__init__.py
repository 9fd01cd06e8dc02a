"""Features that the host's kernel lacks, tried on a distribution kernel in a small virtual machine."""
