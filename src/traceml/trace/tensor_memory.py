"""How much memory a tensor occupies on this rank, and which memory that is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from traceml.trace.interruptions import is_interruption


def local_part(tensor: Any) -> Any:
    """What this rank holds of a tensor that is spread over ranks; of another one the tensor."""
    return getattr(tensor, "_local_tensor", tensor)


def tensor_bytes(tensor: Any) -> int:
    """What a tensor occupies on this rank, in bytes; nothing where a lazy layer that was never
    called has not made it yet.

    Of a sparse tensor that is its indices and values, of an expanded one what it repeats.
    """
    local = local_part(tensor)
    if is_lazy(local):
        return 0
    parts = _parts_of_sparse(local)
    if parts is not None:
        return sum(map(tensor_bytes, parts))
    return int(_stored_elements(local) * local.element_size())


def _stored_elements(tensor: Any) -> int:
    """How many elements of a tensor lie in memory: one that is expanded repeats some of them."""
    if tensor.layout == torch.strided and not tensor.is_nested and 0 in (stride := tensor.stride()):
        return prod(
            size if step else min(size, 1) for size, step in zip(tensor.shape, stride, strict=True)
        )
    return int(tensor.numel())


def _parts_of_sparse(tensor: Any) -> Sequence[torch.Tensor] | None:
    """The dense tensors that a sparse one is made of, its values last; `None` for a dense one."""
    layout = tensor.layout
    if layout == torch.strided:
        return None
    # To ask for them is an operation, which no mode of the script's is to see.
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        if layout == torch.sparse_coo:
            return tensor._indices(), tensor._values()
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return None


def gradient_of(parameter: Any) -> Any:
    """The gradient of a parameter; `None` for a non-leaf tensor in its place, as in meta-learning:
    torch warns when such a tensor is asked for its gradient."""
    is_asked = parameter.is_leaf or parameter.retains_grad
    return parameter.grad if is_asked else None


def storage_of(tensor: Any) -> torch.UntypedStorage | None:
    """The memory of a dense tensor; `None` where it has none of its own, such as one that
    `torch.func` has wrapped."""
    try:
        found: torch.UntypedStorage = tensor.untyped_storage()
        return found
    except (RuntimeError, NotImplementedError) as error:
        if is_interruption(error):
            raise
        return None


def id_of(tensor: Any) -> int:
    """Identifies the memory of a tensor as long as it is not freed; of a sparse one that of its
    values."""
    local = local_part(tensor)
    if is_lazy(local):
        return id(tensor)
    parts = _parts_of_sparse(local)
    storage = storage_of(local if parts is None else parts[-1])
    try:
        return id(tensor) if storage is None else int(storage.data_ptr())
    except (RuntimeError, NotImplementedError) as error:
        if is_interruption(error):
            raise
        return id(tensor)


class KeptMemory:
    """Adds up the memory that tensors keep: what several of them share counts once."""

    def __init__(self) -> None:
        self._views: dict[int, set[tuple[int, int]]] = {}
        """By memory: where each part of it that was added begins, and how large it is."""
        self._counted: dict[int, int] = {}

    def add(self, tensor: Any) -> int:
        """Adds a tensor; returns by how many bytes the memory that is kept grows.

        Views of the same memory, such as the three parts of one projection, are added up; together
        they keep no more than all of it. A memory that somebody has freed, as FSDP does with what
        it had gathered, is none.
        """
        local, memory = local_part(tensor), id_of(tensor)
        size, storage = tensor_bytes(local), storage_of(local)
        views = self._views.setdefault(memory, set())
        view = (0 if storage is None else int(local.storage_offset()), size)
        if view in views:
            return 0
        views.add(view)
        before = self._counted.get(memory, 0)
        whole = before + size if storage is None else storage.nbytes()
        self._counted[memory] = max(before, min(before + size, whole))
        return self._counted[memory] - before
