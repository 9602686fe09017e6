"""Models as documents and back.

A document is ``model_dump()`` of its model, ``partition_id`` and ``_id``, as agent-lightning 0.3
wrote them. What BSON cannot hold, or the server gives a meaning of its own, is kept as JSON text in
its place, ``{"agl$json": "..."}``:

* objects with a key that holds NUL or begins with ``$`` or ``agl$``,
* integers beyond 64 bits,
* what lies more than 80 levels deep (the server's limit is 100).

Dots in keys, NaN, infinity and bytes are held as they are. Tuples and sets become lists; times,
enumerations and other objects become what they are in JSON. Refused are: text with lone
surrogates, an integer beyond 64 bits in a field that is sorted by, a document over 16 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import bson
from bson.raw_bson import RawBSONDocument
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from agl.errors import BackendError, InvalidRequestError
from agl.store.collection.mongo.errors import MOST_DOCUMENT_BYTES, too_large
from agl.store.collection.mongo.query import INT64, field_kind

ModelT = TypeVar("ModelT", bound=BaseModel)

JSON_KEY = "agl$json"
EXTRAS_KEY = "agl$extras"
WRAPPED_KEY = "agl$wrapped"
"""Set on documents with JSON text in them, so that the others need not be searched for it."""

_OWN_KEYS = frozenset(("_id", "partition_id", EXTRAS_KEY, WRAPPED_KEY))
_DEEPEST = 80
_MOST_SHOWN_PARTS = 10
_PLAIN = frozenset((float, bool, type(None), bytes))


class _UnstorableError(Exception):
    """Collects the place of a value on the way out."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.place: list[str] = []

    def refusal(self, where: str) -> InvalidRequestError:
        """The error for the caller, which names the place under ``where``."""
        parts = [where, *reversed(self.place)]
        if len(parts) > _MOST_SHOWN_PARTS:
            parts[_MOST_SHOWN_PARTS:] = ["..."]
        return InvalidRequestError(f"{'.'.join(parts)}: {self.reason}")


class _Encoder:
    __slots__ = ("wrapped",)

    def __init__(self) -> None:
        self.wrapped = False

    def encode(self, value: Any, depth: int) -> Any:
        kind = cast("type[Any]", type(value))
        if kind is str:
            return value if value.isascii() else _text(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if value in INT64 else self._wrap(value)
        if kind is dict:
            return self._object(value, depth)
        if kind is list or kind is tuple:
            return self._array(value, depth)
        return self._other(value, depth)

    def _object(self, value: dict[Any, Any], depth: int) -> Any:
        if depth >= _DEEPEST or not all(map(_is_plain_key, value)):
            return self._wrap(value)
        encoded: dict[str, Any] = {}
        for key, item in value.items():
            try:
                encoded[key] = self.encode(item, depth + 1)
            except _UnstorableError as error:
                error.place.append(key)
                raise
        return encoded

    def _array(self, value: Sequence[Any], depth: int) -> Any:
        if depth >= _DEEPEST:
            return self._wrap(value)
        encoded: list[Any] = []
        for index, item in enumerate(value):
            try:
                encoded.append(self.encode(item, depth + 1))
            except _UnstorableError as error:
                error.place.append(str(index))
                raise
        return encoded

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._object(dict(cast("Mapping[Any, Any]", value)), depth)
        try:
            return self.encode(to_jsonable_python(value), depth)
        except (PydanticSerializationError, ValueError) as error:
            raise _UnstorableError(f"it has no JSON form: {error}") from None

    def _wrap(self, value: Any) -> dict[str, str]:
        self.wrapped = True
        return {JSON_KEY: _json_text(value)}


def _is_plain_key(key: Any) -> bool:
    if type(key) is not str or key.startswith(("$", "agl$")) or "\0" in key:
        return False
    if not key.isascii():
        _text(key)
    return True


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _UnstorableError(
            "text with a lone surrogate cannot be stored; encode it first"
        ) from None
    return value


def _json_text(value: Any) -> str:
    try:
        text = to_json(value, inf_nan_mode="constants").decode()
        json.loads(text)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise _UnstorableError(f"it cannot be stored: {error}") from None
    return text


def _dumped(item: BaseModel, fields: set[str] | None = None) -> dict[str, Any]:
    try:
        return item.model_dump(include=fields, warnings=False)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidRequestError(f"{type(item).__name__} cannot be stored: {error}") from None


def _encoded(values: Mapping[str, Any], item_type: type[BaseModel]) -> dict[str, Any]:
    encoder = _Encoder()
    document: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if type(value) is int and value not in INT64 and _is_number(item_type, name):
                raise _UnstorableError("an integer beyond 64 bits cannot be stored in this field")
            document[name] = encoder.encode(value, 1)
        except _UnstorableError as error:
            raise error.refusal(name) from None
    if encoder.wrapped:
        document[WRAPPED_KEY] = True
    return document


def _is_number(item_type: type[BaseModel], name: str) -> bool:
    return field_kind(item_type, name).holds == "number"


def encode_value(value: Any, where: str) -> Any:
    """One value as a document holds it.

    Raises:
        InvalidRequestError: it cannot be stored; the message names the place under ``where``.
    """
    encoder = _Encoder()
    try:
        return encoder.encode(value, 1)
    except _UnstorableError as error:
        raise error.refusal(where) from None


def decode_value(value: Any) -> Any:
    """The value that :func:`encode_value` was given."""
    if type(value) is dict:
        known = cast("dict[str, Any]", value)
        if len(known) == 1 and JSON_KEY in known:
            return json.loads(known[JSON_KEY])
        return {key: decode_value(item) for key, item in known.items()}
    if type(value) is list:
        return [decode_value(item) for item in cast("list[Any]", value)]
    return value


@cache
def _declared(item_type: type[BaseModel]) -> frozenset[str]:
    return frozenset(item_type.model_fields)


def model_fields(item: BaseModel) -> dict[str, Any]:
    """The fields of a document for a model, without ``_id`` and ``partition_id``.

    Raises:
        InvalidRequestError: a value cannot be stored; the message names it.
    """
    values = _dumped(item)
    extras: dict[str, Any] | None = None
    if item.model_extra:
        extras = {name: values.pop(name) for name in item.model_extra if not _is_top_name(name)}
    document = _encoded(values, type(item))
    if extras:
        document[EXTRAS_KEY] = encode_value(extras, type(item).__name__)
        document[WRAPPED_KEY] = True
    return document


def some_fields(item: BaseModel, fields: Sequence[str]) -> dict[str, Any]:
    """As :func:`model_fields`, only the fields named.

    Raises:
        InvalidRequestError: the model has no such field, or a value cannot be stored.
    """
    unknown = [name for name in fields if name not in _declared(type(item))]
    if unknown:
        raise InvalidRequestError(f"{type(item).__name__} has no field {unknown[0]!r} to update")
    return _encoded(_dumped(item, set(fields)), type(item))


def _is_top_name(name: str) -> bool:
    """Whether an extra field can be a field of the document and be named in an update."""
    return _is_plain_key(name) and "." not in name and name != "" and name not in _OWN_KEYS


def from_document(document: Mapping[str, Any], item_type: type[ModelT]) -> ModelT:
    """The model of a document; fields that it does not know are ignored, or kept as extras.

    Raises:
        BackendError: the document does not fit the model.
    """
    values = {name: value for name, value in document.items() if name not in _OWN_KEYS}
    if document.get(WRAPPED_KEY):
        values = cast("dict[str, Any]", decode_value(values))
        values.update(decode_value(document.get(EXTRAS_KEY, {})))
    try:
        return item_type.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BackendError(
            f"Document {document.get('_id')} is no {item_type.__name__}: {place}: {first['msg']}"
        ) from None


def sealed(document: Mapping[str, Any], what: str) -> RawBSONDocument:
    """The document encoded once and for all, which the driver sends as it is.

    Raises:
        TooLargeError: it is larger than the server takes; ``what`` names it in the message.
    """
    encoded = bson.encode(document)
    if len(encoded) > MOST_DOCUMENT_BYTES:
        raise too_large(what, len(encoded))
    return RawBSONDocument(encoded)
