"""Which operations of torch count as no floating-point operations: elementwise ones, reductions,
copies, new tensors, random numbers and communication.

Torch has tags for most of them, but not for all, and fewer in earlier versions: the rest is listed
by name. An operation that is missing here is not taken for one of them: one of another library may
do any work, and so may a kernel that fuses several operations and is newer than this list.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache
from typing import Any

import torch

LIBRARIES = frozenset(
    {
        "prim",
        "profiler",
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "fsdp",
    }
)
"""Communication between ranks, and how torch follows what is done."""
_TAGS = ("pointwise", "reduction", "view_copy", "inplace_view")

_NAMES = """
fused_adam* fused_sgd* fused_adagrad* amp_* foreach_non_finite_*

empty* zero zeros* ones* full* new_* eye arange range linspace logspace rand* tril_indices
triu_indices *_window fft_fftfreq fft_rfftfreq scalar_tensor efficientzerotensor complex from_file
fill fill_* set *copy* clone lazy_clone lift lift_* resize* pin_memory record_stream to_dense
to_sparse* to_mkldnn detach alias mkldnn_reshape mkldnn_transpose mkldnn_reorder_*

cat stack block_diag diag_embed *_cat unsafe_* split* unbind* repeat* roll flip rot90 tril triu
trace lu_unpack select_* slice_* diagonal_* as_strided_* unfold_* pixel_* channel_shuffle im2col
col2im cudnn_rnn_flatten_weight

index* masked_* put take gather scatter* where embedding* nonzero* argwhere sort topk kthvalue mode
median nanmedian unique* searchsorted bucketize isin bincount hist* count_nonzero segment_reduce*

?lshift ?rshift bitwise_* add sub rsub mul div floor_divide remainder pow polar eq ne ge gt le lt
isinf isnan conj_physical addr linalg_cross copysign relu add_relu leaky_relu* rrelu_with_noise*
elu* celu* gelu* glu* silu* mish* softplus* *shrink *shrink_backward threshold* hardtanh*
hardsigmoid* hardswish* log_sigmoid* sigmoid* tanh* prelu_* *softmax* dropout native_dropout*
fused_dropout cudnn_init_dropout_state thnn_fused_lstm_cell* thnn_fused_gru_cell*
transform_bias_rescale_qkv

sum powsum mean prod std var std_mean var_mean any all min max amin amax aminmax argmin argmax
is_all_true is_any_true dist *norm* cum* logcumsumexp logsumexp hash_tensor
binary_cross_entropy* *_loss* batch_norm*

*pool?d* *_pad1d* *_pad2d* *_pad3d* constant_pad_nd upsample_* *grid_sampler* *affine_grid_*

bernoulli uniform exponential geometric cauchy random* poisson binomial multinomial
sample_dirichlet dirichlet_grad standard_gamma* philox_*

fake_quantize_* quantize_* dequantize int_repr q_per_channel_* make_per_* empty_* fused_moving_avg*
convert_* *_pack_4bit_weight cslt_compress coalesce* sparse_compressed_* sparse_coo_* sparse_csr_*
sparse_mask* sparse_sum* sparse_resize* spdiags nested_compute_* nested_from_* nested_get_*
nested_select_* nested_sum_* nested_tensor_* pack_padded_sequence to_padded_tensor
jagged_to_padded_dense_* padded_dense_to_jagged_* sparse_semi_structured_tile
sparse_semi_structured_apply*

functional_assert_* assert_* functional_sym_* sym_* make_dep_token is_* local_scalar_dense
"""
"""Of torch itself, without underscores at either end."""
_named = re.compile("|".join(map(translate, _NAMES.split())))
_named_in_torchvision = re.compile(r"nms|_?(ps_)?roi_(align|pool)(_backward)?")


@cache
def has_no_flops(operation: Any) -> bool:
    """Whether an operation takes no floating-point operations that are counted."""
    packet = getattr(operation, "_overloadpacket", None)
    if packet is None:  # one that calls others, of a higher order
        return False
    library, _, name = packet._qualified_op_name.partition("::")
    if library == "torchvision":
        return _named_in_torchvision.fullmatch(name) is not None
    if library in LIBRARIES or is_view(operation) or not _makes_tensors(operation):
        return True
    if library != "aten":
        return False
    base = name.removeprefix("_foreach_").removesuffix("_")  # as of one tensor, and not in place
    return _named.match(base.strip("_")) is not None or any(
        _has_tag(each) for each in (packet, getattr(torch.ops.aten, base, None)) if each is not None
    )


def is_view(operation: Any) -> bool:
    """Whether an operation moves nothing: its result is another look at the same memory."""
    schema = getattr(operation, "_schema", None)
    return schema is not None and any(
        each.alias_info is not None and not each.alias_info.is_write for each in schema.returns
    )


def _makes_tensors(operation: Any) -> bool:
    """Whether an operation makes or changes tensors: one that does not asks about them."""
    schema = operation._schema
    made = any("Tensor" in str(each.type) for each in schema.returns)
    return made or any(each.alias_info is not None for each in schema.arguments)


def _has_tag(packet: Any) -> bool:
    """Whether torch says so of any form of an operation."""
    tags = {tag for name in packet.overloads() for tag in getattr(packet, name).tags}
    return any(getattr(torch.Tag, name, None) in tags for name in _TAGS)
