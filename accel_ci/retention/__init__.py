"""Retention: the keep rules, and removing everything that no kept build needs."""
