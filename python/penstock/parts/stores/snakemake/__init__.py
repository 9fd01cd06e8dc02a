"""Jobs of Snakemake on the nodes of a store, with placement hints and data location."""
