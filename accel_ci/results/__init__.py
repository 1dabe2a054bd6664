"""What is kept of the tests: attempts, verdicts and the questions that are asked of them."""
