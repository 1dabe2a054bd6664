"""`python -m accel_ci.cli`."""

from accel_ci.cli import main

main()
