"""CI/CD for PyTorch's out-of-tree accelerator backends, as a Dagster project."""

import os

# Arrow reads this when it is loaded. Its default pool keeps what is freed: a quarter of the memory of storing a report.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
