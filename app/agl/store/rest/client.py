"""The store, seen from another process: every call is a request to a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agl.store.base import LightningStoreCapabilities
from agl.store.rest.calls.attempts import AttemptCalls
from agl.store.rest.calls.records import RecordCalls
from agl.store.rest.calls.rollouts import RolloutCalls
from agl.store.rest.calls.spans import SpanCalls
from agl.store.rest.transport import Transport
from agl.store.rest.wire import API_V1_AGL_PREFIX, TRACES_PATH


class LightningStoreClient(RolloutCalls, AttemptCalls, SpanCalls, RecordCalls):
    """Client of a store server; raises what a local store would raise.

    Args:
        server_address: ``http://host:port``, with ``user:TOKEN@`` before the host when the server
            demands an API token.
        retry_delays: Seconds before each retry of a request that failed for a passing reason.
        health_retry_delays: Seconds between the health probes that precede a retry; together they
            are how long a store may be away, 16 s by default, as a restart of its container takes.
        request_timeout: Seconds for a whole request.
        connection_timeout: Seconds for connecting.
        instance_id: The only instance to talk to, as its health names it; see :meth:`pin`.
        certificate: PEM file with the server's own certificate, which is then trusted under
            whatever name the server is reached, and no other; the system's trust by default.
    """

    def __init__(
        self,
        server_address: str,
        *,
        retry_delays: Sequence[float] = (1.0, 2.0, 5.0),
        health_retry_delays: Sequence[float] = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0),
        request_timeout: float = 30.0,
        connection_timeout: float = 5.0,
        instance_id: str | None = None,
        certificate: Path | None = None,
    ) -> None:
        self._transport = Transport(
            server_address,
            retry_delays=retry_delays,
            health_retry_delays=health_retry_delays,
            request_timeout=request_timeout,
            connection_timeout=connection_timeout,
            certificate=certificate,
        )
        self._transport.pinned = instance_id
        self._forget()

    def _forget(self) -> None:
        self._dequeued_before = False
        self._dequeue_warned = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server_address_root!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_transport": self._transport}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def server_address_root(self) -> str:
        """The server's URL without credentials."""
        return self._transport.root

    @property
    def server_address(self) -> str:
        """URL of the REST interface, without credentials."""
        return self.server_address_root + API_V1_AGL_PREFIX

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(
            thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True
        )

    def otlp_traces_endpoint(self) -> str:
        """URL that takes OTLP traces, with the credentials of the server address if it has any."""
        return self._transport.address_with_credentials + TRACES_PATH

    async def close(self) -> None:
        """Close the connections of all event loops; the client can still be used afterwards."""
        await self._transport.close()

    async def pin(self) -> str:
        """Talk to the instance that answers now and to no other from here on; returns its id.

        A server that takes its place later, be it restarted or of another trainer, has none of its
        rollouts: calls then raise ``WrongInstanceError`` and change nothing there.

        Raises:
            RuntimeError: the server is of 0.3 and has no id.
        """
        health = await self.health()
        if not health.instance_id:
            raise RuntimeError(f"The server at {self.server_address_root} has no instance id")
        self._transport.pinned = health.instance_id
        return health.instance_id
