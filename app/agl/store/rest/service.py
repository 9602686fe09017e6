"""What the layers and routes of one server share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from agl.store.rest.limits import ServerLimits
from agl.store.rest.replays import Replays
from agl.store.rest.waiting import WaitingRoom


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass
class Service:
    """One server: who it is, what it takes on, and who waits in it."""

    limits: ServerLimits = field(default_factory=ServerLimits)
    instance_id: str = field(default_factory=_new_id)
    """Drawn anew by every server that is built; its processes share it."""

    waiting: WaitingRoom = field(init=False)
    replays: Replays = field(init=False, default_factory=Replays)

    def __post_init__(self) -> None:
        self.waiting = WaitingRoom(self.limits)
