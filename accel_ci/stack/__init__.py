"""The software stack that the backend runs on: its components are built in order, tested, and kept as one archive."""
