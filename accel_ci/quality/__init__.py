"""Test quality from the history: flaky tests, causes of failures, incidents, quarantine, levels and trends."""
