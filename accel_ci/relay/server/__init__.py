"""The relay's server: it dispatches upstream's webhooks to each downstream, and takes their callbacks back.

A delivery passes through the modules in this order: `application` (HTTP), `webhook` (the checks), `queue` (stored, then
answered), `fan_out` (the workers), `dispatch` (the request to GitHub). A callback: `application`, `identity` (who calls),
`callback` (the checks), `jobs` (the step and forwards, then answered), `outbox` and `forward` (to check runs and stores).
"""
