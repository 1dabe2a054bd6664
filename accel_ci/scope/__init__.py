"""The tests that are in scope of a build."""
