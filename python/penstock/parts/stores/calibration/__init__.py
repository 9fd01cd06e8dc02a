"""Service times of a live store from application-level measurements (`penstock seed`)."""
