"""Types of input files: quantities, machines and their disks, clusters, studies."""
