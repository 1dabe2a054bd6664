"""Run other programs with limits, and end everything that they started."""
