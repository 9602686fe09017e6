"""Is this a MongoDB the store can work with? Found out before anything is served."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, PyMongoError, ServerSelectionTimeoutError
from pymongo.uri_parser import parse_uri

from agl.config import MongoSettings
from agl.errors import EnvironmentFault
from agl.store.mongo_admin.connect import Client, Document, connected, place, unknown_name
from agl.store.mongo_admin.servers import SERVERS

OLDEST_SERVER = "6.0"
OLDEST_WIRE_VERSION = 17
BEST_SERVER = "8.0"
BEST_WIRE_VERSION = 25
"""From here on one command writes to several collections, so that the store needs the fewest."""

SKEW_SECONDS = 1.0
"""Clocks of this machine and of MongoDB that differ by more are worth a warning."""

_LONG_AGO = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Server:
    """What was found.

    Attributes:
        version: As the server names it.
        kind: ``replica set NAME`` or ``sharded cluster``.
        wire_version: The newest protocol version it speaks.
        skew_seconds: How far this machine's clock is ahead of the server's, at least.
    """

    version: str
    kind: str
    wire_version: int
    skew_seconds: float


async def diagnose(settings: MongoSettings) -> Server:
    """Look at the server, its version, its kind, the user's rights and the clock.

    Raises:
        EnvironmentFault: The store cannot work with it; one line says why and what to do.
    """
    async with connected(settings) as client:
        try:
            began = time.time()
            hello: Document = await client.admin.command("hello")
            ended = time.time()
        except ServerSelectionTimeoutError:
            await _explain(settings)
        except ConfigurationError as exc:
            if "wire version" not in str(exc):
                raise
            raise _too_old(settings, "a server that old") from exc
        _check_kind(settings, hello)
        build: Document = await client.admin.command("buildInfo")
        version, wire = str(build.get("version", "?")), int(hello.get("maxWireVersion", 0))
        if wire < OLDEST_WIRE_VERSION:
            raise _too_old(settings, version)
        await _check_rights(client, settings)
    return Server(version, _kind(hello), wire, skew(hello, began, ended))


def _kind(hello: Document) -> str:
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster"
    return f"replica set {hello['setName']}"


def skew(hello: Document, began: float, ended: float) -> float:
    """Seconds that this machine's clock is ahead of the server's, at least.

    0 while the server's time may lie between question and answer.
    """
    there: Any = hello.get("localTime")
    if not isinstance(there, datetime):
        return 0.0
    moment = there.replace(tzinfo=UTC).timestamp()
    if began > moment:
        return began - moment
    return min(0.0, ended - moment)


def _check_kind(settings: MongoSettings, hello: Document) -> None:
    """Raises for a server without transactions."""
    if "setName" in hello or hello.get("msg") == "isdbgrid":
        return
    where = place(settings)
    if hello.get("isreplicaset"):
        raise EnvironmentFault(
            f"the replica set of MongoDB at {where} is not initiated",
            remedy='once, on that server: mongosh --eval "rs.initiate()"',
        )
    raise EnvironmentFault(
        f"MongoDB at {where} is a standalone server, which has no transactions",
        remedy="start it as a replica set, of one member if need be: mongod --replSet rs0, then "
        'once: mongosh --eval "rs.initiate()"',
    )


def _too_old(settings: MongoSettings, version: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"MongoDB at {place(settings)} is version {version}, too old for this store",
        remedy=f"MongoDB {OLDEST_SERVER} or newer is needed, {BEST_SERVER} is best",
    )


async def _check_rights(client: Client, settings: MongoSettings) -> None:
    """Do once what the store does; a missing right raises the driver's error."""
    servers = client[settings.database][SERVERS]
    probe = {"_id": f"probe/{uuid.uuid4().hex}"}
    await servers.create_index("seen_at")
    await servers.update_one(probe, {"$set": {"seen_at": _LONG_AGO}}, upsert=True)
    await servers.find_one(probe)
    await servers.delete_one(probe)


# Why no server could be selected


async def _explain(settings: MongoSettings) -> NoReturn:
    where = place(settings)
    try:
        parsed: dict[str, Any] = parse_uri(settings.uri)
    except PyMongoError as exc:
        raise unknown_name(settings) from exc
    options: dict[str, Any] = {name.lower(): value for name, value in parsed["options"].items()}
    hellos = [found for node in parsed["nodelist"] if (found := await _hello(node, options))]
    if not hellos:
        raise EnvironmentFault(
            f"MongoDB at {where} cannot be reached",
            remedy="see whether it runs, whether this machine reaches the address, and whether "
            "both or none of the two use TLS",
        )
    for hello in hellos:
        _check_kind(settings, hello)
        if int(hello.get("maxWireVersion", 0)) < OLDEST_WIRE_VERSION:
            raise _too_old(settings, f"{hello.get('maxWireVersion')} of the wire protocol")
    raise _no_primary(where, options.get("replicaset"), hellos)


def _no_primary(where: str, wanted: str | None, hellos: list[Document]) -> EnvironmentFault:
    names = sorted({str(hello["setName"]) for hello in hellos if "setName" in hello})
    if wanted is not None and wanted not in names:
        found = " and ".join(map(repr, names))
        return EnvironmentFault(
            f"MongoDB at {where} is replica set {found}, the connection string says {wanted!r}",
            remedy=f"write replicaSet={names[0] if names else ''} into the connection string",
        )
    members = sorted({str(host) for hello in hellos for host in hello.get("hosts", ())})
    if not any(hello.get("primary") for hello in hellos):
        return EnvironmentFault(
            f"the replica set of MongoDB at {where} has no primary",
            remedy="see why (mongosh, rs.status()): most of its members have to run",
        )
    return EnvironmentFault(
        f"the members of the replica set at {where} cannot be reached from here by the names they "
        f"have in it: {', '.join(members)}",
        remedy="make these names known to this machine, or reconfigure the set (rs.reconfig)",
    )


async def _hello(node: tuple[str, int | None], options: dict[str, Any]) -> Document | None:
    """The greeting of one server, asked directly; ``None`` when it does not answer."""
    tls = {name: value for name, value in options.items() if name.startswith(("tls", "ssl"))}
    with suppress(PyMongoError, OSError):
        client: Client = AsyncMongoClient(
            node[0],
            node[1],
            directConnection=True,
            serverSelectionTimeoutMS=2000,
            connectTimeoutMS=2000,
            **tls,
        )
        try:
            return await client.admin.command("hello")
        finally:
            await client.close()
    return None
