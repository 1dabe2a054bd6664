"""Wheels, their checks, and runtime images."""
