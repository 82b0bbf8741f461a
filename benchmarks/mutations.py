"""Mutations of valid files: bytes, JSON documents and protobuf messages, each determined by a random generator alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from random import Random
from typing import Any

# Integers at which parsers fail: around powers of two, with either sign.
_EDGES = [0, 1, -1, 2**7, 2**15, 2**16, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**63 - 1, -(2**63)]
# What replaces a value of a JSON document.
_VALUES: list[Any] = [
    *_EDGES,
    *(
        None,
        True,
        False,
        "",
        "x",
        "\ud800",
        "\x1b[31m",
        "[/red]",
        "../" * 8 + "etc/passwd",
        "9" * 400,
        "a" * 70_000,
    ),
    *(
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        10**30,
        [],
        {},
        [[]],
        [None],
        {"": {}},
        [0] * 1000,
    ),
]
_DEEP = 3000


def of_bytes(data: bytes, generator: Random) -> bytes:
    """One to four changes: flipped bits, cut or repeated parts, integers at their limits."""
    changed = bytearray(data)
    for _ in range(generator.choice([1, 1, 1, 2, 4])):
        generator.choice([_flip, _flip, _truncate, _remove, _repeat, _splice, _integer, _noise])(
            changed, generator
        )
    return bytes(changed)


def _place(data: bytearray, generator: Random) -> int:
    """An index; formats keep what matters at their ends, which are chosen more often."""
    size = max(1, len(data))
    near = min(size, 256)
    return generator.choice(
        [generator.randrange(size), generator.randrange(near), size - 1 - generator.randrange(near)]
    )


def _flip(data: bytearray, generator: Random) -> None:
    if data:
        data[_place(data, generator)] ^= 1 << generator.randrange(8)


def _truncate(data: bytearray, generator: Random) -> None:
    del data[_place(data, generator) :]


def _remove(data: bytearray, generator: Random) -> None:
    at = _place(data, generator)
    del data[at : at + generator.choice([1, 2, 8, 64, 1024])]


def _repeat(data: bytearray, generator: Random) -> None:
    at = _place(data, generator)
    data[at:at] = data[at : at + generator.choice([1, 8, 64, 1024])] * generator.choice([1, 2, 50])


def _splice(data: bytearray, generator: Random) -> None:
    source, at, size = (
        _place(data, generator),
        _place(data, generator),
        generator.choice([1, 4, 16, 256]),
    )
    data[at : at + size] = data[source : source + size]


def _integer(data: bytearray, generator: Random) -> None:
    at, size = _place(data, generator), generator.choice([1, 2, 4, 8])
    data[at : at + size] = (generator.choice(_EDGES) % 2 ** (8 * size)).to_bytes(
        size, generator.choice(["little", "big"])
    )


def _noise(data: bytearray, generator: Random) -> None:
    at, size = _place(data, generator), generator.choice([1, 4, 32])
    data[at : at + size] = generator.randbytes(size)


def of_json(data: bytes, generator: Random) -> bytes:
    """In two of three cases one to three changed values of the document, otherwise changed bytes."""
    if generator.random() < 1 / 3:
        return of_bytes(data, generator)
    holder = [json.loads(data)]
    for _ in range(generator.choice([1, 1, 2, 3])):
        parent, key = generator.choice(
            [place for place in _places(holder) if place[0] is not holder or len(holder) == 1]
        )
        generator.choice([_replace, _replace, _replace, _delete, _rename, _swap, _nest])(
            parent, key, generator
        )
        if not holder:
            return b""
    return _dumped(holder[0]).encode("utf-8", "surrogatepass")


def _dumped(value: Any) -> str:
    # Of a document that was nested too deeply for the encoder, only the nesting is left.
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * (_DEEP * 40) + "]" * (_DEEP * 40)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a document."""
    stack = [value]
    while stack:
        container = stack.pop()
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            yield container, key
            if isinstance(container[key], dict | list):
                stack.append(container[key])


def _replace(parent: Any, key: Any, generator: Random) -> None:
    parent[key] = deepcopy(generator.choice(_VALUES))


def _delete(parent: Any, key: Any, generator: Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, generator: Random) -> None:
    if isinstance(parent, dict):
        parent[
            generator.choice(["", "x", f"{key} ", str(key).upper(), "auto_map", "__class__"])
        ] = parent.pop(key)


def _swap(parent: Any, key: Any, generator: Random) -> None:
    """Another type with the same content."""
    value = parent[key]
    parent[key] = generator.choice(
        [[value], {"value": value}, _dumped(value)[:1000], [value, value]]
    )


def _nest(parent: Any, key: Any, generator: Random) -> None:
    value: Any = parent[key]
    for _ in range(generator.choice([2, 200, _DEEP])):
        value = [value]
    parent[key] = value


def of_message(kind: Callable[[], Any]) -> Callable[[bytes, Random], bytes]:
    """Mutations of a protobuf message of a type: in two of three cases changed fields, otherwise changed bytes."""

    def mutate(data: bytes, generator: Random) -> bytes:
        if generator.random() < 1 / 3:
            return of_bytes(data, generator)
        message = kind()
        message.ParseFromString(data)
        for _ in range(generator.choice([1, 1, 2, 4])):
            _change(generator.choice(list(_messages(message))), generator)
        return bytes(message.SerializeToString())

    return mutate


def _messages(message: Any) -> Iterator[Any]:
    """A message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _change(message: Any, generator: Random) -> None:
    """Change, remove, repeat or reorder one field of a message."""
    present = [field for field, _ in message.ListFields()]
    field = generator.choice(present or list(message.DESCRIPTOR.fields))
    values = getattr(message, field.name)
    if field.is_repeated:
        kept = list(values)
        if not kept or generator.random() < 0.2:
            message.ClearField(field.name)
        elif field.type == field.TYPE_MESSAGE:
            chosen = generator.choice(kept)
            values.add().CopyFrom(chosen) if generator.random() < 0.5 else values.remove(chosen)
        else:
            values[generator.randrange(len(kept))] = _scalar(
                field, generator.choice(kept), generator
            )
    elif field.type == field.TYPE_MESSAGE or generator.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, values, generator))


def _scalar(field: Any, value: Any, generator: Random) -> Any:
    if isinstance(value, str):
        return generator.choice(
            [
                "",
                value + "x",
                value[:-1],
                "[/red]",
                "\x1b[31m",
                "../" * 8 + "etc/passwd",
                "/etc/passwd",
            ]
        )
    if isinstance(value, bytes):
        return of_bytes(value, generator)
    if isinstance(value, float):
        return generator.choice([0.0, -1.0, 1e38, float("nan"), float("inf")])
    if field.type == field.TYPE_ENUM:
        return generator.choice(field.enum_type.values).number
    small = field.type in (field.TYPE_INT32, field.TYPE_UINT32)
    low, high = (-(2**31), 2**31 - 1) if small else (-(2**63), 2**63 - 1)
    near = generator.choice([value + 1, value - 1, value * 2, *_EDGES])
    return max(low if field.type in (field.TYPE_INT32, field.TYPE_INT64) else 0, min(high, near))
