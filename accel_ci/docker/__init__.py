"""The Docker engine: its command line, and containers that live as long as a run."""
