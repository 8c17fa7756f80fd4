"""What is measured: keys, values and calls, scenarios of them, and how a trial of each runs."""
