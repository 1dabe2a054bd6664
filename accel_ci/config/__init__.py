"""The settings of a project: their types and defaults, and loading them from `accel_ci.yaml`."""
