"""A backend's end of the relay: it receives dispatches, has them built, and reports the results."""
