"""CI/CD for PyTorch's out-of-tree accelerator backends, as a Dagster project."""
