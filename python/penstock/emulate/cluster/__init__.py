"""Virtual nodes: put up, entered, changed, watched and taken down, and the process that holds them."""
