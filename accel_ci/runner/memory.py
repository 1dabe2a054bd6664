"""The kernel's count of processes of this container that it ended because memory ran out."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup 2 and 1


def memory_kills() -> int:
    """Return the number of processes ended because this control group was out of memory; 0 where it is unknown."""
    for path in _COUNTERS:
        try:
            words = Path(path).read_text("ascii").split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
