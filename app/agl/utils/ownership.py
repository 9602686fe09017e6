"""Who owns an object: copies at the edge of a store, and how to do without them.

Stored objects are never changed in place: a write replaces the stored object by a new one. So a
store may share them freely inside itself, and copies only what crosses its public edge: values
that a caller hands in (he may change them later) and objects that it returns.

A caller who changes neither, such as a route that parses bytes into objects and turns the answer
into bytes, says so with :func:`share_objects` and saves the copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from copy import deepcopy
from types import TracebackType
from typing import Any, TypeVar, cast

from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound=BaseModel)
ValueT = TypeVar("ValueT")

_ATOMS = frozenset((str, int, float, bool, type(None), bytes))
_set = object.__setattr__
_sharing: ContextVar[bool] = ContextVar("agl_share_objects", default=False)
_field_sets: dict[frozenset[str], set[str]] = {}
_shared_ids: set[int] = set()
_MOST_FIELD_SETS = 1000


class share_objects:  # noqa: N801 - used like a function, a class because that is cheaper
    """Within it, stores in this process take and return objects without copying them.

    The caller promises to change neither what he passes nor what he gets, now or later.
    """

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = _sharing.set(True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _sharing.reset(self._token)


def sharing() -> bool:
    """Whether the current caller gave the promise of :func:`share_objects`."""
    return _sharing.get()


def copy_value(value: ValueT) -> ValueT:
    """A copy that shares nothing changeable with ``value``.

    Containers and models are copied all the way down; what Python cannot copy is shared.
    """
    return cast("ValueT", _copy(value))


def copy_model(model: ModelT) -> ModelT:
    """A copy of a pydantic model that shares nothing changeable with it."""
    kind = type(model)
    twin = kind.__new__(kind)
    _set(
        twin,
        "__dict__",
        {
            name: value if type(value) in _ATOMS else _copy(value)
            for name, value in model.__dict__.items()
        },
    )
    extra = model.__pydantic_extra__
    _set(twin, "__pydantic_extra__", extra if extra is None else _copy(extra))
    _set(twin, "__pydantic_fields_set__", set(model.__pydantic_fields_set__))
    private = model.__pydantic_private__
    _set(twin, "__pydantic_private__", private if private is None else _copy(private))
    return twin


def replace(model: ModelT, /, **changes: Any) -> ModelT:
    """A new model with ``changes``, not validated; everything else is shared with ``model``."""
    kind = type(model)
    twin = kind.__new__(kind)
    known = model.__pydantic_fields_set__
    fields_set = known if changes.keys() <= known else known | set(changes)
    values = model.__dict__.copy()
    for field, value in changes.items():  # a merge of dictionaries would make room for more
        values[field] = value
    _set(twin, "__dict__", values)
    _set(twin, "__pydantic_extra__", model.__pydantic_extra__)
    _set(twin, "__pydantic_fields_set__", fields_set)
    _set(twin, "__pydantic_private__", model.__pydantic_private__)
    return twin


def merge(model: Any, source: Any, fields: Sequence[str]) -> Any:
    """A new model with ``fields`` of ``source``, not validated; everything else is ``model``'s."""
    twin: Any = object.__new__(cast("type[Any]", type(model)))
    known: set[str] = model.__pydantic_fields_set__
    values, others = model.__dict__.copy(), source.__dict__
    for field in fields:
        values[field] = others[field]
    _set(twin, "__dict__", values)
    _set(twin, "__pydantic_extra__", model.__pydantic_extra__)
    _set(
        twin, "__pydantic_fields_set__", known if known.issuperset(fields) else known.union(fields)
    )
    _set(twin, "__pydantic_private__", model.__pydantic_private__)
    return twin


def changeable(model: ModelT) -> ModelT:
    """A model to assign fields of; until then it shares its values with ``model``."""
    twin = replace(model)
    _set(twin, "__pydantic_fields_set__", set(model.__pydantic_fields_set__))
    return twin


def share_field_names(model: Any) -> None:
    """Let a model that will not be changed share the set of its given fields with others."""
    given: set[str] = model.__pydantic_fields_set__
    if id(given) in _shared_ids:
        return
    names = frozenset(given)
    shared = _field_sets.get(names)
    if shared is None and len(_field_sets) < _MOST_FIELD_SETS:
        shared = _field_sets[names] = set(names)
        _shared_ids.add(id(shared))  # it lives as long as the process
    if shared is not None:
        _set(model, "__pydantic_fields_set__", shared)


def assemble(kind: type[ModelT], values: dict[str, Any]) -> ModelT:
    """A model of values known to be right, not validated; it shares them with their owner."""
    model = kind.__new__(kind)
    _set(model, "__dict__", values)
    _set(model, "__pydantic_extra__", None)
    _set(model, "__pydantic_fields_set__", set(values))
    _set(model, "__pydantic_private__", None)
    return model


def _copy(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {
            key: item if type(item) in _ATOMS else _copy(item)
            for key, item in cast("dict[Any, Any]", value).items()
        }
    if kind is list:
        return [item if type(item) in _ATOMS else _copy(item) for item in cast("list[Any]", value)]
    if isinstance(value, BaseModel):
        return copy_model(value)
    try:
        return deepcopy(value)
    except Exception:
        return value  # an opaque input of a caller in the same process, e.g. a handle
