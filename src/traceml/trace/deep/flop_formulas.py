"""How many floating-point operations an operation of torch takes: by torch's own formulas, and by
ours where torch has none.

Products of matrices and the like are counted: two for each pair of numbers that is multiplied and
added. All that an operation computes counts, also what nobody asked for: cuDNN always computes the
gradient of an LSTM's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils.flop_counter import flop_registry

from traceml.trace.deep.operations_without_flops import has_no_flops

Formula = Callable[..., float]
"""Takes the operation's arguments, and its result as `out_val`."""

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)


def flops_of(operation: Any, args: Any, kwargs: Any, result: Any) -> int | None:
    """Returns the floating-point operations of a call; `None` where nobody knows how many."""
    formula = formula_of(operation)
    if formula is None:
        return 0 if has_no_flops(operation) else None
    if any(isinstance(each, torch.Tensor) and each.layout in _SPARSE for each in args):
        return None  # formulas assume dense tensors
    return round(formula(*args, **kwargs, out_val=result))


@cache
def composite(operation: Any, device: str) -> Any:
    """Returns a function that runs an operation as its parts, as torch does on a device without a
    kernel of its own for it; `None` where there is such a kernel, or where the operation itself can
    be counted.

    Where gradients are computed, torch splits such operations before they come to us.
    """
    kernel_of = getattr(operation, "_op_dk", None)
    if kernel_of is None or formula_of(operation) is not None or has_no_flops(operation):
        return None
    keys = (_COMPOSITE.name, torch._C._dispatch_key_for_device(device))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    has, has_own = (has_kernel(operation.name(), key) for key in keys)
    return partial(kernel_of, _COMPOSITE) if has and not has_own else None


def operation_name(operation: Any) -> str:
    """An operation as its registration calls it: `aten::mm`."""
    packet = getattr(operation, "_overloadpacket", operation)
    return str(getattr(packet, "_qualified_op_name", operation))


def formula_of(operation: Any) -> Formula | None:
    """Returns the formula that counts an operation; `None` where there is none, or none is
    needed."""
    packet = getattr(operation, "_overloadpacket", operation)  # those of a higher order have none
    found: Formula | None = flop_registry.get(packet)
    library, _, name = operation_name(operation).partition("::")
    if found is not None or library != "aten":
        return found
    base = name.removesuffix("_")  # in place it is as much
    if base != name:
        found = flop_registry.get(getattr(torch.ops.aten, base, None))
    return _FORMULAS.get(base) if found is None else found


_count_fused: Any = flop_counter.sdpa_flop_count
_count_fused_backward: Any = flop_counter.sdpa_backward_flop_count


def _fused_attention(query: Any, key: Any, value: Any, *more: Any, **options: Any) -> int:
    return int(_count_fused(query.shape, key.shape, value.shape))


def _fused_attention_backward(
    gradient: Any, query: Any, key: Any, value: Any, *more: Any, **options: Any
) -> int:
    shapes = (each.shape for each in (gradient, query, key, value))
    return int(_count_fused_backward(*shapes))


def _vectors(given: torch.Tensor) -> int:
    """How many vectors a batch has: a batch of sequences has one per sample and time step."""
    return given.numel() // max(given.shape[-1], 1)


def _recurrent(given: torch.Tensor, weight: Sequence[torch.Tensor], *_: Any, **__: Any) -> int:
    """Each matrix of each layer and direction is used once per sample and time step."""
    used = sum(each.numel() for each in weight if each.dim() == 2)
    return 2 * _vectors(given) * used


def _recurrent_backward(*args: Any, **options: Any) -> int:
    """The gradient of the weights, and that of what they were multiplied with."""
    return 2 * _recurrent(*args, **options)


def _recurrent_layer(
    given: torch.Tensor, of_input: torch.Tensor, of_state: torch.Tensor, *_: Any, **__: Any
) -> int:
    return _recurrent(given, (of_input, of_state))


def _recurrent_layer_backward(*args: Any, **options: Any) -> int:
    return 2 * _recurrent_layer(*args, **options)


def _grouped(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """Products of groups of matrices; where both are flat, each group has a part of what is summed
    over, and where one is, a part of its rows or columns."""
    if a.dim() == b.dim() == 3:
        return 2 * a.numel() * b.shape[-1]
    return 2 * a.shape[-2] * a.shape[-1] * b.shape[-1]


def _matrix_vector(matrix: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * matrix.numel()


def _sum_of_matrix_vector(_: Any, matrix: torch.Tensor, *__: Any, **___: Any) -> int:
    return 2 * matrix.numel()


def _sum_of_batch(_: Any, a: torch.Tensor, b: torch.Tensor, *__: Any, **___: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _many_matrices(a: Sequence[Any], b: Sequence[Any], *_: Any, **__: Any) -> int:
    return sum(map(_matrices, a, b))


def _matrices(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    return 2 * a.numel() * b.shape[-1]


def _trilinear(
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """The first two are multiplied, and summed over what the third lacks; then that and the third:
    `nn.Bilinear`, and its gradients."""
    first = list(map(max, _expanded(i1, expand1), _expanded(i2, expand2)))
    left = [1 if n in sumdim and n in expand3 else size for n, size in enumerate(first)]
    second = map(max, left, _expanded(i3, expand3))
    return 2 * math.prod(first) + 2 * math.prod(second)


def _expanded(tensor: torch.Tensor, dimensions: Sequence[int]) -> list[int]:
    sizes = list(tensor.shape)
    for dimension in sorted(dimensions):
        sizes.insert(dimension, 1)
    return sizes


def _pairs(x1: torch.Tensor, x2: torch.Tensor) -> int:
    """How many numbers are compared between each two of two sets of points."""
    return x1.numel() * x2.shape[-2]


def _distances(x1: torch.Tensor, x2: torch.Tensor, *_: Any, **__: Any) -> int:
    """A difference, its power, and the sum of these."""
    return 3 * _pairs(x1, x2)


def _distances_backward(_: Any, x1: torch.Tensor, x2: torch.Tensor, *__: Any, **___: Any) -> int:
    """The same differences, scaled and added."""
    return 3 * _pairs(x1, x2)


def _distances_by_product(x1: torch.Tensor, x2: torch.Tensor, *_: Any, **__: Any) -> int:
    """A product of points to which their squared lengths, and ones, were appended."""
    return 2 * _pairs(x1, x2) // max(x1.shape[-1], 1) * (x1.shape[-1] + 2)


def _distances_within(points: torch.Tensor, *_: Any, **__: Any) -> int:
    return 3 * points.numel() * (points.shape[0] - 1) // 2


def _distances_within_backward(_: Any, points: torch.Tensor, *__: Any, **___: Any) -> int:
    return 3 * points.numel() * (points.shape[0] - 1)


def _fourier(given: torch.Tensor, dimensions: Sequence[int], *_: Any, **__: Any) -> float:
    """5 n log₂ n for n complex numbers, as usual."""
    return 5 * given.numel() * _log_size(given, dimensions)


def _fourier_of_real(given: torch.Tensor, dimensions: Sequence[int], *_: Any, **__: Any) -> float:
    """Half as many for real ones."""
    return 2.5 * given.numel() * _log_size(given, dimensions)


def _fourier_to_real(_: Any, dimensions: Sequence[int], *__: Any, **options: Any) -> float:
    return _fourier_of_real(options["out_val"], dimensions)


def _log_size(tensor: torch.Tensor, dimensions: Sequence[int]) -> float:
    return math.log2(max(math.prod(tensor.shape[each] for each in dimensions), 1))


_FORMULAS: dict[str, Formula] = {
    # Fused attention on a CPU: the same as on a GPU
    "_scaled_dot_product_flash_attention_for_cpu": _fused_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _fused_attention_backward,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "miopen_rnn": _recurrent,
    "miopen_rnn_backward": _recurrent_backward,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "_scaled_grouped_mm_v2": _grouped,
    "_scaled_mm_v2": _matrices,
    "_int_mm": _matrices,
    "_foreach_mm": _many_matrices,
    "_addmm_activation": _sum_of_batch,
    "addbmm": _sum_of_batch,
    "mv": _matrix_vector,
    "addmv": _sum_of_matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
    "_trilinear": _trilinear,
    "_cdist_forward": _distances,
    "_cdist_backward": _distances_backward,
    "_euclidean_dist": _distances_by_product,
    "_pdist_forward": _distances_within,
    "_pdist_backward": _distances_within_backward,
    "_fft_c2c": _fourier,
    "_fft_r2c": _fourier_of_real,
    "_fft_c2r": _fourier_to_real,
}
"""TraceML's own formulas, by the names of torch's operations."""
