"""The cross-repository CI relay: upstream's events go to the CI of the backends, and their results come back.

What both ends share is here. The end that serves an upstream is in `accel_ci.relay.server`, a backend's in
`accel_ci.relay.downstream`.
"""
