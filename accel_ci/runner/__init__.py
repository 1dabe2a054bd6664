"""The part of accel_ci that runs beside the accelerator: the collector, the worker and its pytest child.

It runs in the runtime image, so it uses only the standard library and pytest (8 or newer), on Python 3.9 and newer. It is
shipped as a zipapp of this folder's files (`accel_ci.pool.runner_package`) and must not import the rest of `accel_ci`. The
driver's side is in `accel_ci.rounds`.
"""
