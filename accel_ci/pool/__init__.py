"""Pools run workers: on this machine, in containers or in a cluster.

Nothing of Dagster belongs here. The driver is `accel_ci.rounds`; what runs beside the accelerator is `accel_ci.runner`.
"""
