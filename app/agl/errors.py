"""Every exception the package raises on purpose.

    AglError
    ├── UsageError                      a bad option or argument; the CLI exits with 2
    ├── EnvironmentFault                the machine is not ready; carries a remedy; exits with 1
    └── StoreError                      something a store call was asked cannot be done
        ├── InvalidRequestError         (ValueError)    a value the store cannot accept
        │   └── TooLargeError                           it is larger than the backend can hold
        ├── NotFoundError               (ValueError)    an id nobody knows
        │   ├── RolloutNotFoundError
        │   └── AttemptNotFoundError
        ├── ConflictError               (ValueError)    it clashes with what is stored
        │   ├── DuplicatedPrimaryKeyError
        │   └── WrongInstanceError
        ├── GoneError                   (RuntimeError)  it existed and was given up
        │   └── SpansEvictedError
        └── BackendError                (RuntimeError)  the database refused
            └── BackendUnavailableError                 it cannot be reached, or not just now

Store errors are also the built-in class that agent-lightning 0.3 raised in the same place, so
``except ValueError`` in a trainer keeps working.
"""

from __future__ import annotations


class AglError(Exception):
    """Root of the tree."""


class UsageError(AglError):
    """A command was called with an option or argument that makes no sense."""


class EnvironmentFault(AglError):
    """The machine cannot do what was asked; ``remedy`` says what to type or change."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} - {self.remedy}" if self.remedy else self.message


class StoreError(AglError):
    """Root of everything a store call raises."""


class InvalidRequestError(StoreError, ValueError):
    """A value the store cannot accept; the message names the field and the remedy."""


class TooLargeError(InvalidRequestError):
    """A value larger than the backend can hold; the message names the limit."""


class NotFoundError(StoreError, ValueError):
    """An id nobody knows."""


class RolloutNotFoundError(NotFoundError):
    """No rollout has this id."""


class AttemptNotFoundError(NotFoundError):
    """The rollout has no such attempt (or no attempt at all)."""


class ConflictError(StoreError, ValueError):
    """The request clashes with what is stored."""


class DuplicatedPrimaryKeyError(ConflictError):
    """An item with this primary key is already stored."""


class WrongInstanceError(ConflictError):
    """The server is another one than the client was pinned to; nothing was done."""


class GoneError(StoreError, RuntimeError):
    """It was stored once and has been given up."""


class SpansEvictedError(GoneError):
    """The spans of this rollout were evicted to free memory."""


class BackendError(StoreError, RuntimeError):
    """The database refused what the store asked; trying again does not help."""


class BackendUnavailableError(BackendError):
    """The database cannot be reached, or cannot answer just now; trying again helps."""

    retry_after_seconds = 1
    """How long to wait before trying again."""
