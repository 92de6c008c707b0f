"""Checks that values have the types of their annotations: of messages, settings, and arguments of clients.

It checks types and not values, and containers by their items.  ``float`` takes whole numbers too, ``Sequence`` any
collection but texts.  An annotation that it does not know takes everything.
"""

import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from enum import Enum
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from triomq.protocol.errors import TriomqError, WrongTypeError

P = ParamSpec("P")
S = TypeVar("S")
_NUMBERS: Final[dict[Any, tuple[type, str]]] = {int: (Integral, "a whole number"), float: (Real, "a number")}
_NAMES: Final = {str: "a text", bytes: "bytes", bool: "True or False", type(None): "None"}
_UNIONS: Final = (Union, types.UnionType)


def check_fields(instance: Any, error: type[TriomqError] = WrongTypeError) -> None:
    """Check the fields of a dataclass.

    Raises:
        WrongTypeError: or another class; a field has the wrong type.
    """
    for field in fields(instance):
        _check(field.name, field.type, getattr(instance, field.name), error)


def checked(function: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Check the arguments of a method: raises :class:`WrongTypeError`."""
    names, annotations = tuple(signature(function).parameters)[1:], function.__annotations__

    @wraps(function)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            _check(name, annotations.get(name, Any), value, WrongTypeError)
        function(self, *args, **kwargs)

    return call


def check_callable(name: str, function: Any, *wanted: str) -> None:
    """Check that a user's function takes the wanted positional arguments.

    Raises:
        WrongTypeError: it does not, or cannot be called.
    """
    if not callable(function):
        raise WrongTypeError(f"{name}: {function!r:.80} cannot be called")
    try:
        parameters = signature(function)
    except ValueError:  # of a builtin
        return
    try:
        parameters.bind(*wanted)
    except TypeError as exc:
        raise WrongTypeError(f"{name}: {function!r:.80} is called with ({', '.join(wanted)}): {exc}") from None


def _check(name: str, annotation: Any, value: object, error: type[TriomqError]) -> None:
    if not _takes(annotation, value):
        raise error(f"{name}: {_kind(value)} is given; pass {_describe(annotation)}")  # not the value: it may be secret


def _takes(annotation: Any, value: Any) -> bool:
    annotation = getattr(annotation, "__supertype__", annotation)  # of a NewType
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS:
        return any(_takes(one, value) for one in arguments)
    if origin is Literal:
        return isinstance(value, tuple({type(one) for one in arguments}))
    if origin is Callable:
        return callable(value)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _takes(arguments[0], key) and _takes(arguments[1], item) for key, item in value.items()
        )
    if origin is not None and issubclass(origin, Collection):
        is_text = isinstance(value, str | bytes | Mapping)
        return isinstance(value, Collection) and not is_text and all(_takes(arguments[0], item) for item in value)
    if annotation in _NUMBERS:
        return isinstance(value, _NUMBERS[annotation][0]) and not isinstance(value, bool)
    if annotation is None:
        return value is None
    is_class = isinstance(annotation, type) and origin is None and not getattr(annotation, "_is_protocol", False)
    return not is_class or annotation is Any or isinstance(value, annotation)  # Any is a class since Python 3.11


def _describe(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in _UNIONS:
        return " or ".join(dict.fromkeys(map(_describe, arguments)))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is Callable:
        return "a function"
    if origin is not None and issubclass(origin, Mapping):
        return f"a dict from {_describe(arguments[0])} to {_describe(arguments[1])}"
    if origin is not None:
        return f"a list, each {_describe(arguments[0])}"
    if annotation in _NUMBERS:
        return _NUMBERS[annotation][1]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"{annotation.__name__}.{one.name}" for one in annotation)
    name = getattr(annotation, "__name__", str(annotation))
    return _NAMES.get(annotation) or ("None" if annotation is None else _article(name))


def _kind(value: object) -> str:
    name, inner = _article(type(value).__name__), ""
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | memoryview):
        items = value.values() if isinstance(value, Mapping) else value
        inner = ", ".join(sorted({type(item).__name__ for item in items}))
    return f"{name} of {inner}" if inner else name


def _article(name: str) -> str:
    return "None" if name == "NoneType" else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
