"""CI/CD for PyTorch's out-of-tree accelerator backends, as a Dagster project."""

import os
import sys

# Arrow reads this when it is loaded; with jemalloc, storing a report takes least memory and time (`benchmarks.reports`).
if sys.platform == "linux":
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
