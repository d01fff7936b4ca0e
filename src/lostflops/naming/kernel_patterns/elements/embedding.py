"""Embedding tables."""

from __future__ import annotations

from lostflops.naming.kernel_patterns.pattern import KernelPattern

EMBEDDING = (
    KernelPattern(
        "embedding",
        (
            "embedding_codegen",
            "embedding_backward",
            "split_embedding",
            "EmbeddingBag",
            "embedding_bag",
            "permute_pooled_embs",
            "bounds_check_indices",
            "linearize_index_kernel",
        ),
        "FBGEMM, TorchRec and PyTorch ATen, lookups in tables and their backward",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, "
        "long>(int)",
        precision="element",
    ),
    KernelPattern(
        "embedding",
        (
            "compute_grad_weight",
            "krn_partials_per_segment",
            "krn_partial_segment_offset",
            "sum_and_scatter",
            "renorm_kernel",
        ),
        "PyTorch ATen, backward of an embedding",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16, long>(long const*)",
        precision="element",
    ),
    KernelPattern(
        "embedding",
        ("embedding", "Embedding"),
        "kernels that call themselves an embedding",
        "_masked_embedding_kernel",
    ),
)
