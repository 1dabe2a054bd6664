"""Reproduce a failure: in the build's image on another machine, or by replaying a worker's tests in order."""
