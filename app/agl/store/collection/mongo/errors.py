"""From the driver's errors to ours: once, here, and without addresses or passwords."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)

from agl.errors import (
    AglError,
    BackendError,
    BackendUnavailableError,
    DuplicatedPrimaryKeyError,
    TooLargeError,
)

DUPLICATE_KEY = 11000
MOST_DOCUMENT_BYTES = 16 * 1024 * 1024
TRANSIENT = "TransientTransactionError"

TOO_LARGE_CODES = frozenset((10334, 17280, 17419, 17420))
_UNAUTHENTICATED = frozenset((18, 8000))
_FORBIDDEN = frozenset((13,))
_PASSING = frozenset(
    (
        6,  # HostUnreachable
        7,  # HostNotFound
        24,  # LockTimeout
        50,  # MaxTimeMSExpired
        64,  # WriteConcernTimeout
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        100,  # UnsatisfiableWriteConcern
        112,  # WriteConflict
        133,  # FailedToSatisfyReadPreference
        134,  # ReadConcernMajorityNotAvailableYet
        189,  # PrimarySteppedDown
        251,  # NoSuchTransaction
        262,  # ExceededTimeLimit
        9001,  # SocketException
        10058,  # NotWritablePrimary, before 4.4
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
        14031,  # OutOfDiskSpace
        46841,  # ClientMarkedKilled
    )
)


def resolve_mongo_error_type(error: BaseException | None) -> str:
    """What upstream's metrics call an error: its class, and the code of a refused operation.

    ``OperationFailure-<code>`` for all the server refused, with ``-Transient`` after an error
    that a whole transaction may be repeated for; ``N/A`` for none.
    """
    if error is None:
        return "N/A"
    if not isinstance(error, PyMongoError):
        return type(error).__name__
    name = type(error).__name__
    if isinstance(error, OperationFailure):
        name = f"OperationFailure-{error.code}"
    return f"{name}-Transient" if error.has_error_label(TRANSIENT) else name


def write_errors(error: PyMongoError) -> list[Mapping[str, Any]]:
    """What single operations of a bulk failed with: ``code``, ``errmsg`` and the like."""
    if isinstance(error, BulkWriteError):
        return cast("list[Mapping[str, Any]]", error.details.get("writeErrors", []))
    return []


def is_duplicate_key(error: PyMongoError) -> bool:
    """Whether a stored primary key made a write fail."""
    if isinstance(error, DuplicateKeyError):
        return True
    first = next(iter(write_errors(error)), None)
    return first is not None and first.get("code") == DUPLICATE_KEY


def is_passing(error: PyMongoError) -> bool:
    """Whether the same call may succeed a moment later."""
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WaitQueueTimeoutError):
        return True
    if error.has_error_label(TRANSIENT) or error.has_error_label("RetryableWriteError"):
        return True
    return error_code(error) in _PASSING


def error_code(error: PyMongoError) -> int | None:
    """The server's code of the error, or of the first operation of a bulk that failed."""
    first = next(iter(write_errors(error)), None)
    if first is not None:
        return cast("int | None", first.get("code"))
    return error.code if isinstance(error, OperationFailure) else None


def too_large(what: str, size: int) -> TooLargeError:
    """The error for a document beyond what the server takes."""
    limit = MOST_DOCUMENT_BYTES // (1024 * 1024)
    return TooLargeError(
        f"{what} takes {size} bytes in the database, whose limit is {limit} MiB a document; "
        "store large content elsewhere and its address here"
    )


def limit_exceeded() -> str:
    """What to say of a document that the server found too large."""
    limit = MOST_DOCUMENT_BYTES // (1024 * 1024)
    return f"The document is larger than the database's limit of {limit} MiB"


def translate(error: PyMongoError) -> AglError:
    """Our error for one of the driver's. The text names the cause, no address and no secret."""
    code = error_code(error)
    if is_duplicate_key(error):
        return DuplicatedPrimaryKeyError("An item with this primary key is already stored")
    if isinstance(error, DocumentTooLarge) or code in TOO_LARGE_CODES:
        return TooLargeError(limit_exceeded())
    if code in _UNAUTHENTICATED:
        return BackendError("MongoDB refused the user or password; check the Mongo URI")
    if code in _FORBIDDEN:
        return BackendError("MongoDB refused: the user lacks rights; it needs readWrite")
    if is_passing(error):
        return BackendUnavailableError(_unavailable(error, code))
    if isinstance(error, ConfigurationError | InvalidURI):
        return BackendError(
            f"MongoDB cannot be used as configured ({type(error).__name__}); check the Mongo URI"
        )
    if isinstance(error, InvalidOperation):
        return BackendError("The connection to MongoDB is closed")
    return BackendError(f"MongoDB refused the operation ({_named(error, code)})")


def _unavailable(error: PyMongoError, code: int | None) -> str:
    if isinstance(error, ServerSelectionTimeoutError):
        return "MongoDB cannot be reached, or has no primary; it is tried again"
    if isinstance(error, WaitQueueTimeoutError):
        return "All connections to MongoDB are in use; try again"
    if isinstance(error, AutoReconnect):
        return "The connection to MongoDB was lost; try again"
    return f"MongoDB cannot answer just now ({_named(error, code)}); try again"


def _named(error: PyMongoError, code: int | None) -> str:
    """Class, code and the server's name of the code: its message may hold data."""
    name = type(error).__name__
    details = error.details if isinstance(error, OperationFailure) else None
    code_name = details.get("codeName") if details else None
    known = " ".join(str(part) for part in (code, code_name) if part is not None)
    return f"{name}, code {known}" if known else name


def reraise(error: PyMongoError) -> NoReturn:
    """Raise ours in place of the driver's, which is logged by nobody and may hold an address."""
    raise translate(error) from error


@contextmanager
def translated() -> Generator[None]:
    """Within it, the driver's errors leave as ours."""
    try:
        yield
    except PyMongoError as error:
        reraise(error)
