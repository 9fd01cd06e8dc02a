"""Events of a schedule: times, conditions, results."""
