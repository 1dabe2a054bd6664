"""The results of tests: attempts, verdicts and the queries on them."""
