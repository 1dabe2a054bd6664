"""What the kernel says of memory: whether it has ended processes of this container for want of it."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # cgroup 2 and 1


def memory_kills() -> int:
    """How many processes the kernel has ended because this control group was out of memory; 0 where it does not tell."""
    for path in _COUNTERS:
        try:
            words = Path(path).read_text("ascii").split()
        except OSError:
            continue
        if "oom_kill" in words:
            return int(words[words.index("oom_kill") + 1])
    return 0
