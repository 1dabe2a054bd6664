"""Pools run workers (`accel_ci.runner`) on this machine, in containers or in a cluster. The driver is `accel_ci.rounds`."""
