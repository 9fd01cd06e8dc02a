"""Online controller of deduplication: estimates, utility, decisions, simulation and energy."""
