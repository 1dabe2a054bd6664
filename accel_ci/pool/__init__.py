"""Where workers run, and the driver that has them run a plan: rounds, hand-over, retries and reports.

Nothing of Dagster belongs here. What runs beside the accelerator is `accel_ci.runner`.
"""
