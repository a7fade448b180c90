"""Stands in for SGLang's compiled kernels, which this environment does not have.

On CPU SGLang imports the names below while it loads, whatever the model. A plain Llama without
speculative decoding calls none of them; whatever does call one is told which is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

_IMPORTED_ON_CPU = (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
)


def _missing(name: str) -> Callable[..., NoReturn]:
    def kernel(*_arguments: object, **_options: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs SGLang's compiled CPU kernels")

    return kernel


globals().update({name: _missing(name) for name in _IMPORTED_ON_CPU})
