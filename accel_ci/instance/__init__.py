"""The machine behind a pool that is started for the tests and paused afterwards."""
