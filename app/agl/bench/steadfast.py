"""Imported by the process that forks a crew, before it does: it and they survive SIGTERM.

``timeout``, a shell's ``kill %1`` and a container's end send it to all processes at once. A crew is
ended by whoever started it, in which case its reports are kept, or by that one's end.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
