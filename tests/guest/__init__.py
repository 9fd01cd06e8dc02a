"""Features that the host's kernel lacks, tested on a distribution kernel in a small virtual machine."""
