"""Connections of the command line to MongoDB, and driver errors as faults with a remedy.

No text made here holds a password: of a connection string only hosts and names are shown.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from agl import __version__
from agl.config import MongoSettings
from agl.errors import EnvironmentFault

PATIENCE_SECONDS = 5.0
"""How long a command looks for a server that can be used."""

UNAUTHORIZED = 13
UNAUTHENTICATED = (18, 8000)
"""The second is what MongoDB Atlas answers."""

Document = dict[str, Any]
Client = AsyncMongoClient[Document]
Database = AsyncDatabase[Document]


def client_kwargs(settings: MongoSettings) -> dict[str, Any]:
    """What the store's clients are given besides the connection string."""
    kwargs: dict[str, Any] = {"appname": f"agl-stack {__version__}"}
    if settings.user is not None:
        kwargs |= {"username": settings.user, "password": settings.password}
    return kwargs


def client_of(settings: MongoSettings, **options: Any) -> Client:
    """A client that has not connected yet.

    Raises:
        EnvironmentFault: The connection string is none.
    """
    patience = int(1000 * PATIENCE_SECONDS)
    given: dict[str, Any] = {
        "serverSelectionTimeoutMS": patience,
        "connectTimeoutMS": patience,
        "readPreference": "primary",
        **client_kwargs(settings),
        **options,
    }
    try:
        return AsyncMongoClient(settings.uri, **given)
    except (ConfigurationError, InvalidURI, ValueError, TypeError) as exc:
        raise _bad_uri(exc) from None


@asynccontextmanager
async def connected(settings: MongoSettings, **options: Any) -> AsyncGenerator[Client]:
    """A client for a while; what goes wrong with the server becomes a fault.

    Raises:
        EnvironmentFault: With a remedy.
    """
    client = client_of(settings, **options)
    try:
        yield client
    except PyMongoError as exc:
        raise fault_of(exc, settings) from exc
    finally:
        await client.close()


def place(settings: MongoSettings) -> str:
    """The hosts of the connection string, without user, password and options."""
    _, _, rest = settings.uri.partition("://")
    return rest.partition("?")[0].rpartition("@")[2].partition("/")[0]


def user_of(settings: MongoSettings) -> str | None:
    """Who logs in, if anybody does."""
    if settings.user is not None:
        return settings.user
    _, _, rest = settings.uri.partition("://")
    login, at, _ = rest.partition("?")[0].rpartition("@")
    return login.partition(":")[0] if at else None


def fault_of(error: PyMongoError, settings: MongoSettings) -> EnvironmentFault:
    """The fault behind an error of the driver."""
    where, user = place(settings), user_of(settings)
    if isinstance(error, OperationFailure):
        return _refused(error, settings, where, user)
    if isinstance(error, ServerSelectionTimeoutError):
        return EnvironmentFault(
            f"MongoDB at {where} has no primary that can be reached",
            remedy="see whether it runs (mongosh, rs.status()) and whether this machine reaches it",
        )
    if isinstance(error, ConfigurationError):
        return unknown_name(settings)
    if isinstance(error, (AutoReconnect, ConnectionFailure)):
        return EnvironmentFault(
            f"the connection to MongoDB at {where} broke",
            remedy="see the log of MongoDB, then try again",
        )
    return EnvironmentFault(f"MongoDB at {where}: {type(error).__name__}")


def unknown_name(settings: MongoSettings) -> EnvironmentFault:
    """The fault when a ``mongodb+srv`` name has no entry."""
    return EnvironmentFault(
        f"the name {place(settings)} of the MongoDB connection string leads to no server",
        remedy="correct it, or see why the name service does not know it",
    )


def _refused(
    error: OperationFailure, settings: MongoSettings, where: str, user: str | None
) -> EnvironmentFault:
    if error.code in UNAUTHENTICATED:
        return EnvironmentFault(
            f"MongoDB at {where} refuses the user {user!r} or its password",
            remedy="correct them; authSource in the connection string names the database that "
            "knows the user (admin by default)",
        )
    if error.code == UNAUTHORIZED and user is None:
        return EnvironmentFault(
            f"MongoDB at {where} demands a user",
            remedy="put one into the connection string (AGL_MONGO_URI_FILE), or set AGL_MONGO_USER "
            "and AGL_MONGO_PASSWORD_FILE",
        )
    if error.code == UNAUTHORIZED:
        return EnvironmentFault(
            f"the MongoDB user {user!r} has not the rights it needs on database "
            f"{settings.database!r}",
            remedy=f'as an administrator: db.grantRolesToUser("{user}", [{{role: "readWrite", '
            f'db: "{settings.database}"}}])',
        )
    return EnvironmentFault(f"MongoDB at {where} answers with error {error.code}: {_text(error)}")


def _text(error: OperationFailure) -> str:
    details = error.details or {}
    return str(details.get("errmsg") or details.get("codeName") or "no reason given")


def _bad_uri(error: Exception) -> EnvironmentFault:
    text = str(error)
    if "escaped" in text:  # the driver's text about user and password names neither
        return EnvironmentFault(
            "the MongoDB connection string cannot be taken apart: its user or password holds "
            "special characters, or its port is no number",
            remedy="write them percent-encoded (@ as %40), or use AGL_MONGO_USER and "
            "AGL_MONGO_PASSWORD_FILE",
        )
    return EnvironmentFault(
        f"the MongoDB connection string cannot be used ({type(error).__name__})",
        remedy="it looks like mongodb://user:password@host:27017/?replicaSet=rs0",
    )
