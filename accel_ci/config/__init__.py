"""The settings of a project: their types and defaults, and how `accel_ci.yaml` is read."""
