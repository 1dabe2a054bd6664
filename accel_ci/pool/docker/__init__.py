"""The Docker pool: workers are containers of an engine on this machine."""
