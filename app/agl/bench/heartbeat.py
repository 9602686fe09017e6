"""What a worker tells the store of itself and its machine."""

from __future__ import annotations

import os
from typing import Any

import psutil


def snapshot(process: psutil.Process) -> dict[str, Any]:
    """Return the load of this machine and of one process, in percent and bytes."""
    memory = psutil.virtual_memory()
    return {
        "pid": process.pid,
        "cpu_percent": psutil.cpu_percent(),
        "cpu_count": psutil.cpu_count(),
        "load_1m": os.getloadavg()[0],
        "memory_total_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "process_cpu_percent": process.cpu_percent(),
        "process_resident_bytes": process.memory_info().rss,
    }
