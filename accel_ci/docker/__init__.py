"""The Docker engine: its client, images, and containers that live as long as a command or a run."""
