"""Many at once, for long: mixed load, soak and fairness."""
