"""Administration of one MongoDB server, asked on this machine's own loopback address."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pymongo import MongoClient
from pymongo.errors import ConfigurationError, OperationFailure, PyMongoError

from agl.ops.mongo_init import AUTHENTICATION_FAILED, SYSTEM_USER, Document, Refused, Unreachable

ANSWER_MS = 5000


class Loopback:
    """The server on this port of the loopback address, as any user; a context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: dict[tuple[str, str], MongoClient[Document]] = {}

    def __enter__(self) -> Loopback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients.values():
            client.close()

    def run(self, user: str, password: str, command: Document) -> Document:
        """Run a command of database ``admin``. Raises Refused and Unreachable."""
        try:
            return self._client(user, password).admin.command(command)
        except OperationFailure as error:
            raise Refused(error.code or 0, _reason(error)) from error
        except ConfigurationError as error:
            # A server that has no such user may not even offer a way to log in.
            raise Refused(AUTHENTICATION_FAILED, str(error)) from error
        except PyMongoError as error:
            raise Unreachable(str(error).partition(",")[0]) from error

    def _client(self, user: str, password: str) -> MongoClient[Document]:
        key = (user, password)
        if key not in self._clients:
            access: dict[str, Any] = {}
            if user:
                source = "local" if user == SYSTEM_USER else "admin"
                access = {"username": user, "password": password, "authSource": source}
            self._clients[key] = MongoClient(
                "127.0.0.1",
                self._port,
                directConnection=True,
                serverSelectionTimeoutMS=ANSWER_MS,
                appname="agl-mongo-init",
                **access,
            )
        return self._clients[key]


def _reason(error: OperationFailure) -> str:
    details = error.details or {}
    return str(details.get("errmsg") or error).partition(", full error")[0]
