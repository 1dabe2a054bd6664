"""The HUD: one static page that says how the backend fares."""
