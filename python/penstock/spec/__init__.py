"""What can be asked for: quantities, machines and their disks, clusters, studies. Imports no other room."""
