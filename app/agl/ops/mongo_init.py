"""The one-shot ``mongo-init`` service: a replica set of one member, and its users.

It looks at the server, takes the one step that is needed next, and looks again, until nothing is
left to do; run twice it changes nothing. What may happen on the way (the server still starts, an
election is under way) only costs another look. A server without users trusts clients on its own
loopback address (MongoDB's *localhost exception*), which is how the first user gets in.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from agl.errors import EnvironmentFault
from agl.ops.options import LineParser
from agl.ops.shapes import items, mapping, texts

ROOT_USER = "root"
SYSTEM_USER = "__system"
SECRETS = Path("/run/agl/secrets")
LOOK_SECONDS = 0.5
WITHOUT_PRIMARY_SECONDS = 30.0

# Codes of MongoDB's errors (error_codes.yml).
UNAUTHORIZED, AUTHENTICATION_FAILED = 13, 18
ALREADY_INITIALIZED = 23

Document = dict[str, Any]


class Refused(Exception):
    """The server answered with an error; ``code`` is MongoDB's number for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Unreachable(Exception):
    """The server does not answer (yet)."""


class Server(Protocol):
    """One MongoDB server, as one of several users. Raises Refused and Unreachable."""

    def run(self, user: str, password: str, command: Document) -> Document:
        """Run a command of database ``admin``; an empty ``user`` does not log in.

        The user ``__system`` is the server itself, whose password is the key file.
        """
        ...


@dataclass(frozen=True)
class User:
    """A user that the bundle needs: its name, its password, and exactly these roles."""

    name: str
    password: str
    roles: tuple[tuple[str, str], ...]

    @property
    def role_documents(self) -> list[Document]:
        return [{"role": role, "db": database} for role, database in self.roles]


@dataclass(frozen=True)
class Wanted:
    """How the server is to be.

    Attributes:
        replica_set: Name of the replica set, as the server's command line has it.
        host: The member's address, ``name:port``, as every service of the bundle finds it.
        root: The administrator.
        users: Further users, with no more rights than they need.
        key: Text of the key file.
    """

    replica_set: str
    host: str
    root: User
    users: tuple[User, ...]
    key: str


@dataclass
class Setup:
    """The work of one run. ``done`` lists what was changed, in words for the log."""

    server: Server
    wanted: Wanted
    done: list[str] = field(default_factory=list[str])
    _waiting_since: float | None = None

    def run(self, timeout: float) -> None:
        """Look and act until nothing is left to do.

        Raises EnvironmentFault when something is in the way that time does not mend, or when it
        takes longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                waiting_for = self.step()
            except Unreachable as error:
                waiting_for = f"MongoDB does not answer ({error})"
            except Refused as error:
                waiting_for = f"MongoDB refuses: {error} (code {error.code})"
            if not waiting_for:
                return
            if time.monotonic() > deadline:
                raise EnvironmentFault(
                    f"{waiting_for}, for {timeout:.0f} s",
                    remedy="look at its log: docker compose logs mongo",
                )
            time.sleep(LOOK_SECONDS)

    def step(self) -> str:
        """One look and what follows from it; returns what is being waited for, "" at the end.

        Raises EnvironmentFault, Refused, Unreachable.
        """
        hello = self._anyone({"hello": 1})
        if "setName" not in hello:
            return self._initiate(hello)
        if hello["setName"] != self.wanted.replica_set:
            raise EnvironmentFault(
                f"the replica set is named {hello['setName']!r}, and {self.wanted.replica_set!r}"
                " is asked for",
                remedy=f"set AGL_MONGO_REPLICA_SET={hello['setName']}",
            )
        if not self._root_is_there():
            return self._create_root(hello)
        if texts(hello.get("hosts")) != [self.wanted.host]:
            return self._correct_host()
        if not hello.get("isWritablePrimary"):
            return "MongoDB has not become primary"
        for user in self.wanted.users:
            self._ensure(user)
        return ""

    # --- the replica set ------------------------------------------------------------------------

    def _initiate(self, hello: Document) -> str:
        if not hello.get("isreplicaset"):
            raise EnvironmentFault(
                "this MongoDB is no member of a replica set, which the store needs",
                remedy="start it with --replSet, as compose.mongo.yml does",
            )
        member = {"_id": 0, "host": self.wanted.host}
        config = {"_id": self.wanted.replica_set, "members": [member]}
        who = self.wanted.root if self._root_is_there() else User("", "", ())
        try:
            self.server.run(who.name, who.password, {"replSetInitiate": config})
        except Refused as error:
            if error.code != ALREADY_INITIALIZED:
                raise
            # There is a configuration, and this server is not in it under any of its names.
            return self._without_primary()
        self.done.append(f"initiated replica set {self.wanted.replica_set}")
        return "the replica set has just been initiated"

    def _correct_host(self) -> str:
        """The only member gets the address of the service; other sets are not touched.

        Without a primary nobody can be created who might do it but the server itself, which logs
        in with the key file.
        """
        user, password = self.wanted.root.name, self.wanted.root.password
        if not self._root_is_there():
            user, password = SYSTEM_USER, self.wanted.key
        answer = self.server.run(user, password, {"replSetGetConfig": 1})
        config = mapping(answer.get("config"))
        members = items(config.get("members"))
        if len(members) != 1:
            raise EnvironmentFault(
                f"the replica set in AGL_MONGO_DATA has {len(members)} members, not one",
                remedy="run it as it was run before, and give its address as AGL_MONGO_URI",
            )
        before = members[0].get("host")
        if before != self.wanted.host:
            changed = {**members[0], "host": self.wanted.host}
            version = int(config.get("version", 0)) + 1
            config = {**config, "version": version, "members": [changed]}
            # The server may not find itself under the old address: then nobody can be asked.
            self.server.run(user, password, {"replSetReconfig": config, "force": True})
            self.done.append(f"address of the member corrected from {before} to {self.wanted.host}")
        return f"MongoDB has not taken on the address {self.wanted.host}"

    # --- users ----------------------------------------------------------------------------------

    def _root_is_there(self) -> bool:
        root = self.wanted.root
        try:
            self.server.run(root.name, root.password, {"ping": 1})
        except Refused as error:
            if error.code != AUTHENTICATION_FAILED:
                raise
            return False
        return True

    def _create_root(self, hello: Document) -> str:
        if not hello.get("isWritablePrimary"):
            return self._without_primary()
        root = self.wanted.root
        command = {"createUser": root.name, "pwd": root.password, "roles": root.role_documents}
        try:
            self._anyone(command)
        except Refused as error:
            if error.code != UNAUTHORIZED:
                raise
            raise EnvironmentFault(
                "MongoDB's data has users already, and the secret mongo-root-password is not the"
                f" password of its user {ROOT_USER!r}",
                remedy="put that password into compose/secrets/mongo-root-password",
            ) from error
        self.done.append(f"created user {root.name} (the data had no users)")
        return "the first user has just been created"

    def _without_primary(self) -> str:
        """A server that finds itself under none of the set's addresses never becomes primary."""
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < WITHOUT_PRIMARY_SECONDS:
            return "MongoDB has not become primary"
        return self._correct_host()

    def _ensure(self, user: User) -> None:
        found = items(self._root({"usersInfo": user.name}).get("users"))
        if not found:
            self._root(
                {"createUser": user.name, "pwd": user.password, "roles": user.role_documents}
            )
            self.done.append(f"created user {user.name}")
            return
        changes: Document = {}
        if _roles(found[0]) != set(user.roles):
            changes["roles"] = user.role_documents
        if not self._can_log_in(user):
            changes["pwd"] = user.password
        if changes:
            self._root({"updateUser": user.name, **changes})
            self.done.append(f"updated {' and '.join(sorted(changes))} of user {user.name}")

    def _can_log_in(self, user: User) -> bool:
        try:
            self.server.run(user.name, user.password, {"ping": 1})
        except Refused as error:
            if error.code != AUTHENTICATION_FAILED:
                raise
            return False
        return True

    def _anyone(self, command: Document) -> Document:
        return self.server.run("", "", command)

    def _root(self, command: Document) -> Document:
        return self.server.run(self.wanted.root.name, self.wanted.root.password, command)


def _roles(user: Document) -> set[tuple[str, str]]:
    return {(str(role.get("role")), str(role.get("db"))) for role in items(user.get("roles"))}


def wanted_users(options: argparse.Namespace, secrets: Path) -> Wanted:
    """What the options and the secrets ask for. Raises EnvironmentFault for a missing secret."""

    def secret(name: str) -> str:
        try:
            return (secrets / name).read_text("utf-8").strip()
        except OSError as error:
            raise EnvironmentFault(
                f"cannot read the secret {name}: {error.strerror}",
                remedy="the init service makes it: docker compose up",
            ) from error

    database = cast("str", options.database)
    return Wanted(
        replica_set=options.replica_set,
        host=options.host,
        root=User(ROOT_USER, secret("mongo-root-password"), (("root", "admin"),)),
        users=(
            # readWrite includes the store's indexes and change streams.
            User(
                options.store_user,
                secret("mongo-store-password"),
                (("readWrite", database),),
            ),
            User(
                options.exporter_user,
                secret("mongo-exporter-password"),
                (("clusterMonitor", "admin"), ("read", "local")),
            ),
        ),
        key=secret("mongo-keyfile"),
    )


def main(argv: list[str], prog: str) -> int:
    """Run ``mongo-init``; returns 0. Raises UsageError and EnvironmentFault."""
    parser = LineParser(
        prog=prog,
        description="Initiate MongoDB's replica set and create its users. The mongo-init service"
        " of the compose files runs it, on the network of the mongo service.",
    )
    parser.add_argument("--replica-set", required=True, metavar="NAME")
    parser.add_argument("--host", required=True, help="address of the only member, name:port")
    parser.add_argument("--database", required=True, help="what the store's user may write")
    parser.add_argument("--store-user", required=True, metavar="NAME")
    parser.add_argument("--exporter-user", required=True, metavar="NAME")
    parser.add_argument("--port", type=int, default=27017, help="on the loopback address")
    parser.add_argument("--timeout", type=float, default=150.0, metavar="SECONDS")
    parser.add_argument("--secrets-dir", type=Path, default=SECRETS, metavar="DIR")
    options = parser.parse_args(argv)

    from agl.ops.mongo_admin import Loopback

    wanted = wanted_users(options, options.secrets_dir)
    with Loopback(options.port) as server:
        setup = Setup(server, wanted)
        try:
            setup.run(options.timeout)
        finally:
            for line in setup.done:
                print(f"mongo-init: {line}", flush=True)
    print("mongo-init: " + ("ready" if setup.done else "ready, nothing to change"))
    return 0
