"""Test quality from the history: flakiness."""
