"""Retention: which builds are kept, and removing what no kept build needs."""
