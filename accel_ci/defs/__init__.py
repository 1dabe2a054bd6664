"""The Dagster definitions: assets, checks, jobs, schedules, sensors, resources. The only package that imports Dagster.

Thin: an asset reads its inputs, calls one plain function and says what a person wants to know of the result.
"""
