"""Events of a schedule: when they are due, what they wait for, what became of them."""
