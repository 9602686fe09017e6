"""Settings: frozen values that the CLI builds once and hands down.

This is the only module of the package that reads or writes the process environment
(``prometheus_client`` reads ``PROMETHEUS_MULTIPROC_DIR`` itself as well).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from agl.errors import EnvironmentFault

LogFormat = Literal["auto", "text", "json"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
TrackerName = Literal["prometheus", "console"]
BackendName = Literal["memory", "mongo"]

LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)

MOST_SERVER_PROCESSES = 512
"""More than any machine has processors for; whoever asks for more has mistyped."""

MULTIPROC_DIR_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
LOG_FORMAT_VARIABLE = "AGL_LOG_FORMAT"
TLS_CERT_VARIABLE = "AGL_TLS_CERT"
TLS_KEY_VARIABLE = "AGL_TLS_KEY"
STORE_URL_VARIABLE = "AGL_STORE_URL"
STORE_CERT_VARIABLE = "AGL_STORE_CERT"
STORE_TOKEN_FILE_VARIABLE = "AGL_STORE_TOKEN_FILE"  # noqa: S105 - a name
_MONGO_VARIABLES = {
    "mongo_uri": "AGL_MONGO_URI",
    "mongo_uri_file": "AGL_MONGO_URI_FILE",
    "mongo_user": "AGL_MONGO_USER",
    "mongo_password_file": "AGL_MONGO_PASSWORD_FILE",
    "mongo_database": "AGL_MONGO_DATABASE",
    "partition_id": "AGL_PARTITION_ID",
}

DEFAULT_MONGO_URI = "mongodb://localhost:27017/?replicaSet=rs0"
DEFAULT_DATABASE = "agentlightning"
DEFAULT_PARTITION = "default"


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """What the environment of the process says.

    Attributes:
        log_format: ``AGL_LOG_FORMAT``; ``auto`` when unset or empty.
        multiproc_dir: ``PROMETHEUS_MULTIPROC_DIR`` as it was given; ``None`` when unset, the empty
            string when set to nothing (``prometheus_client`` takes that as set, too).
        tls_cert: ``AGL_TLS_CERT``, what ``agl store --tls-cert`` is when it is not given.
        tls_key: ``AGL_TLS_KEY``, likewise.
        mongo_uri: ``AGL_MONGO_URI``; this and the ones below are empty when unset.
        mongo_uri_file: ``AGL_MONGO_URI_FILE``.
        mongo_user: ``AGL_MONGO_USER``.
        mongo_password_file: ``AGL_MONGO_PASSWORD_FILE``.
        mongo_database: ``AGL_MONGO_DATABASE``.
        partition_id: ``AGL_PARTITION_ID``.
        store_url: ``AGL_STORE_URL``, what ``agl prometheus --store-url`` is when it is not given.
        store_token_file: ``AGL_STORE_TOKEN_FILE``, likewise.
        store_cert: ``AGL_STORE_CERT``, likewise.
    """

    log_format: LogFormat = "auto"
    multiproc_dir: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    mongo_uri: str = field(default="", repr=False)
    mongo_uri_file: str = ""
    mongo_user: str = ""
    mongo_password_file: str = ""
    mongo_database: str = ""
    partition_id: str = ""
    store_url: str = field(default="", repr=False)
    store_token_file: Path | None = None
    store_cert: Path | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the process logs."""

    level: LogLevel = "INFO"
    format: LogFormat = "auto"


@dataclass(frozen=True, slots=True)
class MongoSettings:
    """Which data of which MongoDB; secrets are left out of its ``repr``.

    Attributes:
        uri: Connection string.
        user: User that logs in; ``None`` means the one in ``uri``, if any.
        password: The password of ``user``.
        database: Name of the database.
        partition_id: The part of the database that one store has for itself.
    """

    uri: str = field(default=DEFAULT_MONGO_URI, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str = DEFAULT_DATABASE
    partition_id: str = DEFAULT_PARTITION


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Everything ``agl store`` was told.

    Attributes:
        host: Address to listen on.
        port: TCP port to listen on.
        cors_origins: Origins a browser may call from; empty means no CORS headers.
        trackers: Metrics backends, in the order given, without duplicates.
        n_workers: Server processes.
        backend: Where the data lives.
        mongo: Where the mongo backend has its data; ``None`` with any other backend.
        exclusive_partition: Refuse to start where another live server uses the partition.
        worker_max_requests: Requests after which a server process is replaced; ``None`` for never.
        api_token_file: File that holds the API token; ``None`` means no token.
        published_on: Address a container's port is published on; ``None`` means not said.
        tls_cert: PEM file with the certificate chain; ``None`` means plain HTTP.
        tls_key: PEM file with the private key; ``None`` means that it is in ``tls_cert``.
        max_requests: Requests under way at once; ``None`` means the server's default.
        max_waits: Waits for rollouts under way at once; likewise.
        max_batch_items: Items in one request; likewise.
        log: Log level and format.
    """

    host: str = "0.0.0.0"
    port: int = 4747
    cors_origins: tuple[str, ...] = ()
    trackers: tuple[TrackerName, ...] = ()
    n_workers: int = 1
    backend: BackendName = "memory"
    mongo: MongoSettings | None = None
    exclusive_partition: bool = False
    worker_max_requests: int | None = None
    api_token_file: Path | None = None
    published_on: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_requests: int | None = None
    max_waits: int | None = None
    max_batch_items: int | None = None
    log: LogSettings = LogSettings()


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Everything ``agl prometheus`` was told.

    Attributes:
        host: Address to listen on.
        port: TCP port to listen on.
        metrics_path: URL path of the metrics.
        auth_file: File that holds what a scrape must show; ``None`` means nothing.
        store_url: Store whose state is served as well; ``None`` for none.
        store_token_file: File that holds the store's API token.
        store_cert: PEM file with the store's own certificate; ``None`` for the system's trust.
        access_log: Log every request.
        log: Log level and format.
    """

    host: str = "0.0.0.0"
    port: int = 4748
    metrics_path: str = "/v1/prometheus"
    auth_file: Path | None = None
    store_url: str | None = field(default=None, repr=False)
    store_token_file: Path | None = None
    store_cert: Path | None = None
    access_log: bool = False
    log: LogSettings = LogSettings()


@dataclass(frozen=True, slots=True)
class PanelsSettings:
    """Everything ``agl panels`` was told.

    Attributes:
        host: Address to listen on.
        port: TCP port to listen on.
        prometheus: Address of Prometheus.
        dashboards: Folder of the dashboards' JSON.
        scrape: Scrape interval of Prometheus, in seconds.
        home: uid of the dashboard that the root leads to.
        runbooks: Folder of the runbooks; ``None`` when there is none.
        auth_file: File that holds the password; ``None`` means no password.
        published_on: Address a container's port is published on; ``None`` means not said.
        log: Log level and format.
    """

    prometheus: str
    dashboards: Path
    host: str = "127.0.0.1"
    port: int = 9091
    scrape: float = 5.0
    home: str = ""
    runbooks: Path | None = None
    auth_file: Path | None = None
    published_on: str | None = None
    log: LogSettings = LogSettings()


def load_environment(environ: Mapping[str, str] | None = None) -> EnvironmentSettings:
    """Read the variables the package honours.

    Args:
        environ: Variables to read instead of the environment of the process.

    Raises:
        EnvironmentFault: A variable holds a value that is not allowed.
    """
    source = os.environ if environ is None else environ
    log_format = source.get(LOG_FORMAT_VARIABLE, "").strip().lower() or "auto"
    if log_format not in LOG_FORMATS:
        raise EnvironmentFault(
            f"{LOG_FORMAT_VARIABLE} is {log_format!r}",
            remedy=f"set it to one of {', '.join(LOG_FORMATS)}, or unset it",
        )
    return EnvironmentSettings(
        log_format=log_format,
        multiproc_dir=source.get(MULTIPROC_DIR_VARIABLE),
        tls_cert=_path(source.get(TLS_CERT_VARIABLE)),
        tls_key=_path(source.get(TLS_KEY_VARIABLE)),
        store_url=source.get(STORE_URL_VARIABLE, "").strip(),
        store_token_file=_path(source.get(STORE_TOKEN_FILE_VARIABLE)),
        store_cert=_path(source.get(STORE_CERT_VARIABLE)),
        **{name: source.get(variable, "").strip() for name, variable in _MONGO_VARIABLES.items()},
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def process_environment() -> dict[str, str]:
    """A copy of all variables, for what starts other programs or looks for the user's tools."""
    return dict(os.environ)


def cache_folder() -> Path:
    """Where to keep what can be made again: ``agl-stack`` in ``XDG_CACHE_HOME`` or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "agl-stack"


def set_multiproc_dir(folder: Path | None) -> None:
    """Set ``PROMETHEUS_MULTIPROC_DIR`` for this process and its children; ``None`` unsets it."""
    if folder is None:
        os.environ.pop(MULTIPROC_DIR_VARIABLE, None)
    else:
        os.environ[MULTIPROC_DIR_VARIABLE] = str(folder)
