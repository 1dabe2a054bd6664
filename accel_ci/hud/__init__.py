"""The HUD: a static page with the state of the backend."""
