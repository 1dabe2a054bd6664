"""Bridges to other CI systems: a job of GitHub Actions, Jenkins or Buildkite has a build made, and shows its answer.

What a build's failures are is decided in `accel_ci.pull_requests.answer`; here belong the calling job, the requests to a
project that runs elsewhere, and the form in which each system shows an answer. The command is `accel-ci ci`.
"""
