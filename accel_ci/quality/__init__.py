"""What the history says of tests: flakiness, and more to come (classification, change points, quarantine)."""
