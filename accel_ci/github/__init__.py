"""GitHub's REST API, as sensors and commands use it: requests, the meaning of answers, tokens, and text for its Markdown."""
