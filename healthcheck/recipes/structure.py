"""Tensors inside tuples, named tuples, lists and mappings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


def map_tensors(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to each tensor in it; containers keep their type, all else stays.

    Goes into tuples, named tuples, lists and mappings, at any depth; `value` itself is not altered.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, MutableMapping):  # a copy keeps what else its type holds, such as a default
        clone = copy.copy(value)
        clone.update({key: map_tensors(change, item) for key, item in value.items()})
        return clone
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, item) for item in value))
    if type(value) in (tuple, list):
        return type(value)(map_tensors(change, item) for item in value)
    return value


def tensors(value: Any) -> Iterator[Any]:
    """Each tensor in `value`, in order, from the containers that `map_tensors` goes into."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
