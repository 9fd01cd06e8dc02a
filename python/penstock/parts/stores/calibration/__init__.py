"""The service times of a store that runs, from what programs see of it (`penstock seed`)."""
