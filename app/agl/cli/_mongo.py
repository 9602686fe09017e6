"""Options and variables that say which data of which MongoDB is meant."""

from __future__ import annotations

import argparse
import shlex
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

from agl.config import (
    DEFAULT_DATABASE,
    DEFAULT_MONGO_URI,
    DEFAULT_PARTITION,
    EnvironmentSettings,
    MongoSettings,
    load_environment,
)
from agl.errors import EnvironmentFault, UsageError

NEW_PARTITION = "new"
_LONGEST_PARTITION = 120
_OF_MONGODB = frozenset(("admin", "config", "local"))
_BAD_IN_DATABASE = frozenset('/\\. "$*<>:|?\0')


def add_mongo_options(parser: argparse.ArgumentParser) -> None:
    """Everything but the partition."""
    add = parser.add_argument
    add(
        "--mongo-uri",
        metavar="URI",
        help="connection string; one with a password belongs into a file or a variable, since "
        f"everybody may list arguments (default: AGL_MONGO_URI, else {DEFAULT_MONGO_URI})",
    )
    add(
        "--mongo-uri-file",
        type=Path,
        metavar="FILE",
        help="file that holds the connection string (default: AGL_MONGO_URI_FILE)",
    )
    add(
        "--mongo-user",
        metavar="NAME",
        help="user, when the connection string names none (default: AGL_MONGO_USER)",
    )
    add(
        "--mongo-password-file",
        type=Path,
        metavar="FILE",
        help="file that holds that user's password (default: AGL_MONGO_PASSWORD_FILE)",
    )
    add(
        "--database",
        metavar="NAME",
        help=f"name of the database (default: AGL_MONGO_DATABASE, else {DEFAULT_DATABASE})",
    )


def add_partition_option(parser: argparse.ArgumentParser) -> None:
    """``--partition-id``."""
    parser.add_argument(
        "--partition-id",
        metavar="ID",
        help="the part of the database this store has for itself; 'new' begins an empty one with a "
        f"random name (default: AGL_PARTITION_ID, else {DEFAULT_PARTITION})",
    )


def mongo_settings(options: argparse.Namespace) -> MongoSettings:
    """From the options, with the variables as their defaults.

    Raises:
        UsageError: A value that makes no sense, or two that exclude each other.
        EnvironmentFault: The same in variables, or a file that cannot be read.
    """
    environment = load_environment()
    uri = _uri(options, environment)
    user, password = _login(options, environment, uri)
    return MongoSettings(
        uri=uri,
        user=user,
        password=password,
        database=_database(options.database or environment.mongo_database),
        partition_id=check_partition(
            getattr(options, "partition_id", None) or environment.partition_id or DEFAULT_PARTITION
        ),
    )


def check_partition(name: str) -> str:
    """The name, if it can be one.

    Raises:
        UsageError: It cannot.
    """
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise UsageError(f"argument --partition-id: {name!r} is no name without blanks around it")
    if len(name) > _LONGEST_PARTITION:
        raise UsageError(
            f"argument --partition-id: longer than {_LONGEST_PARTITION} characters: {name!r}"
        )
    return name


def mongo_admin(name: str) -> ModuleType:
    """A module of ``agl.store.mongo_admin``; they need the driver.

    Raises:
        EnvironmentFault: The driver is not installed.
    """
    try:
        return import_module(f"agl.store.mongo_admin.{name}")
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing not in ("pymongo", "bson", "gridfs"):
            raise
        raise EnvironmentFault(
            f"the MongoDB backend needs the Python module {missing!r}, which is not installed",
            remedy=f"type: {shlex.quote(sys.executable)} -m pip install 'pymongo>=4.13,<5'",
        ) from exc


def read_secret(file: Path, option: str, what: str) -> str:
    """The one line of text in ``file``.

    Raises:
        EnvironmentFault: It is missing, unreadable, empty or no single line of text.
    """
    label = f"{option}: {file}"
    remedy = f"write the {what} into it, on one line, readable for this user"
    try:
        text = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as exc:
        raise EnvironmentFault(f"{label} holds no text", remedy=remedy) from exc
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise EnvironmentFault(f"{label} cannot be read ({reason})", remedy=remedy) from exc
    if not text:
        raise EnvironmentFault(f"{label} is empty", remedy=remedy)
    if not text.isprintable():
        raise EnvironmentFault(f"{label} does not hold one line", remedy=remedy)
    return text


def _uri(options: argparse.Namespace, environment: EnvironmentSettings) -> str:
    uri: str | None = options.mongo_uri
    file: Path | None = options.mongo_uri_file
    if uri is not None and file is not None:
        raise UsageError("argument --mongo-uri-file: not allowed with argument --mongo-uri")
    if uri is not None:
        return checked_uri(uri, "argument --mongo-uri")
    if file is not None:
        option = "argument --mongo-uri-file"
        return checked_uri(read_secret(file, option, "connection string"), option)
    if environment.mongo_uri and environment.mongo_uri_file:
        raise EnvironmentFault(
            "AGL_MONGO_URI and AGL_MONGO_URI_FILE are both set", remedy="unset one of them"
        )
    if environment.mongo_uri:
        return checked_uri(environment.mongo_uri, "AGL_MONGO_URI")
    if environment.mongo_uri_file:
        path = Path(environment.mongo_uri_file)
        return checked_uri(
            read_secret(path, "AGL_MONGO_URI_FILE", "connection string"), "AGL_MONGO_URI_FILE"
        )
    return DEFAULT_MONGO_URI


def checked_uri(uri: str, origin: str) -> str:
    """The connection string, if it looks like one; ``origin`` names it in messages.

    Raises:
        UsageError: It does not.
    """
    uri = uri.strip()
    if not uri.startswith(("mongodb://", "mongodb+srv://")):
        raise UsageError(f"{origin}: a connection string starts with mongodb:// or mongodb+srv://")
    return uri


def _login(
    options: argparse.Namespace, environment: EnvironmentSettings, uri: str
) -> tuple[str | None, str | None]:
    """User and password besides the URI; what is in the URI goes before the variables."""
    in_uri = "@" in urlsplit(uri).netloc
    user: str | None = options.mongo_user
    file: Path | None = options.mongo_password_file
    if in_uri and (user is not None or file is not None):
        raise UsageError(
            "argument --mongo-user: the connection string names a user already; give one of them"
        )
    if in_uri:
        return None, None
    user = user or environment.mongo_user or None
    option = "argument --mongo-password-file"
    if file is None and environment.mongo_password_file:
        file, option = Path(environment.mongo_password_file), "AGL_MONGO_PASSWORD_FILE"
    if (user is None) != (file is None):
        given, needed = ("user", "password file") if file is None else ("password file", "user")
        raise UsageError(
            f"a MongoDB {given} is given, but no {needed} (--mongo-user and --mongo-password-file, "
            "or AGL_MONGO_USER and AGL_MONGO_PASSWORD_FILE)"
        )
    return user, None if file is None else read_secret(file, option, "password")


def _database(name: str) -> str:
    name = name or DEFAULT_DATABASE
    if _BAD_IN_DATABASE & set(name) or len(name.encode()) > 63:
        raise UsageError(
            f"argument --database: {name!r} is no database name: 63 bytes at most, without "
            'blanks and any of /\\."$*<>:|?'
        )
    if name in _OF_MONGODB:
        raise UsageError(f"argument --database: {name!r} is a database of MongoDB's own")
    return name
