"""What runs beside the accelerator: the collector, the worker and its pytest child.

Here belongs what the runtime image needs and nothing else: the standard library and pytest (8 or newer), on Python 3.9
and newer. It is shipped as a zipapp (`accel_ci.pool.runner_package`) and must not import the rest of `accel_ci`. The
driver's side is in `accel_ci.rounds`.
"""
