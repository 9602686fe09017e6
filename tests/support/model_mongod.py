"""A model of what mongod 8.0 does while access to it is set up, written from its manual.

The real server is not to be had on every machine, and the stand-in knows neither
``replSetInitiate`` nor ``replSetReconfig``. Modelled are the localhost exception, users and their
passwords, the replica set's configuration, elections, and a server that does not find itself in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agl.ops.mongo_init import AUTHENTICATION_FAILED, UNAUTHORIZED, Document, Refused, Unreachable

NOT_PRIMARY, ALREADY_INITIALIZED, NOT_YET_INITIALIZED = 10107, 23, 94
# What the localhost exception lets pass; the handshake needs no rights.
WITHOUT_LOGIN = {"hello", "ping"}
BY_EXCEPTION = {"createUser", "replSetInitiate"}


@dataclass
class ModelMongod:
    """One server started with ``--replSet NAME --keyFile``.

    Attributes:
        names: The addresses under which it finds itself.
        starting: Number of questions it still leaves unanswered.
        election: Number of questions for which it is not yet primary after a change of the set.
    """

    replica_set: str = "rs0"
    key: str = "key"
    names: frozenset[str] = frozenset({"mongo:27017", "localhost:27017"})
    config: Document | None = None
    users: dict[str, Document] = field(default_factory=dict[str, Document])
    starting: int = 0
    election: int = 0
    standalone: bool = False
    log: list[str] = field(default_factory=list[str])

    def run(self, user: str, password: str, command: Document) -> Document:
        if self.starting:
            self.starting -= 1
            raise Unreachable("connection refused")
        name = next(iter(command))
        self._log_in(user, password)
        if not user and name not in WITHOUT_LOGIN and (self.users or name not in BY_EXCEPTION):
            raise Refused(UNAUTHORIZED, f"command {name} requires authentication")
        if name not in {"hello", "ping", "replSetGetConfig", "usersInfo"}:
            self.log.append(name)
        return getattr(self, f"_{name}")(command)

    def _log_in(self, user: str, password: str) -> None:
        if not user:
            return
        wanted = self.key if user == "__system" else self.users.get(user, {}).get("pwd")
        if wanted != password:
            raise Refused(AUTHENTICATION_FAILED, "Authentication failed.")

    @property
    def hosts(self) -> list[str]:
        return [member["host"] for member in (self.config or {}).get("members", [])]

    @property
    def primary(self) -> bool:
        return self.election == 0 and len(self.hosts) == 1 and self.hosts[0] in self.names

    def _ping(self, _: Document) -> Document:
        return {"ok": 1}

    def _hello(self, _: Document) -> Document:
        if self.standalone:
            return {"isWritablePrimary": True}
        if self.election:
            self.election -= 1
        if self.config is None or not set(self.hosts) & self.names:
            # "Does not have a valid replica set config": none, or one without this server.
            return {"isWritablePrimary": False, "isreplicaset": True}
        return {
            "setName": self.config["_id"],
            "isWritablePrimary": self.primary,
            "hosts": self.hosts,
        }

    def _replSetInitiate(self, command: Document) -> Document:  # noqa: N802
        if self.config is not None:
            raise Refused(ALREADY_INITIALIZED, "already initialized")
        self.config = {"version": 1, "term": 1, **command["replSetInitiate"]}
        self.election = 2
        return {"ok": 1}

    def _replSetGetConfig(self, _: Document) -> Document:  # noqa: N802
        if self.config is None:
            raise Refused(NOT_YET_INITIALIZED, "no replset config has been received")
        return {"config": self.config}

    def _replSetReconfig(self, command: Document) -> Document:  # noqa: N802
        config = command["replSetReconfig"]
        assert self.config is not None
        assert config["version"] > self.config["version"]
        if not self.primary and not command.get("force"):
            raise Refused(NOT_PRIMARY, "not primary")
        self.config, self.election = config, 2
        return {"ok": 1}

    def _writable(self) -> None:
        if not self.primary:
            raise Refused(NOT_PRIMARY, "not primary")

    def _createUser(self, command: Document) -> Document:  # noqa: N802
        self._writable()
        assert command["createUser"] not in self.users
        self.users[command["createUser"]] = dict(command)
        return {"ok": 1}

    def _updateUser(self, command: Document) -> Document:  # noqa: N802
        self._writable()
        self.users[command["updateUser"]].update(command)
        return {"ok": 1}

    def _usersInfo(self, command: Document) -> Document:  # noqa: N802
        found: Any = self.users.get(command["usersInfo"])
        return {"users": [{"user": command["usersInfo"], "roles": found["roles"]}] if found else []}
