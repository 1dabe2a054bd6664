"""Running other programs: with limits, and to the end of everything that they started."""
