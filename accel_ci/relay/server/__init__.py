"""The relay's server: it takes upstream's webhooks, stores them, and dispatches them to each downstream.

A delivery passes through the modules in this order: `application` (HTTP), `webhook` (the checks), `inbox` (stored, then
answered), `queue` (the tables), `fan_out` (the workers), `dispatch` (the request to GitHub).
"""
