"""The functions that the device-test assets call: collect, plan, run. No Dagster."""
