"""What the names of host operators mean: which family an operator's own work belongs to.

On a CPU-only trace operators take the kernels' place. Most names are looked up: `OPERATOR_FAMILIES` holds the
operators of ATen without their namespace and underscores, and a backward node (`MmBackward0`) or operator
(`mm_backward`) is looked up as what it differentiates. Names that are not operators of ATen have patterns.
"""

from __future__ import annotations

from dataclasses import dataclass

# Views and queries do no work of their own: they are `other`, like all that is recognised and fits nowhere.
OPERATOR_FAMILIES: dict[str, str] = {
    "gemm": """
        mm addmm bmm baddbmm addbmm mv addmv addr ger dot vdot inner matmul linear einsum tensordot
        chain_matmul linalg_multi_dot bilinear trilinear addmm_activation int_mm scaled_mm grouped_mm
        scaled_grouped_mm mixed_dtypes_linear mkl_linear mkldnn_linear linear_pointwise weight_int4pack_mm
        weight_int8pack_mm sparse_mm sparse_addmm fbgemm_linear_fp16_weight linear_dynamic
    """,
    "attention": """
        scaled_dot_product_attention scaled_dot_product_attention_math scaled_dot_product_flash_attention
        scaled_dot_product_flash_attention_for_cpu scaled_dot_product_efficient_attention
        scaled_dot_product_cudnn_attention scaled_dot_product_fused_attention_overrideable fused_sdp_choice
        flash_attention flash_attention_forward efficient_attention efficient_attention_forward
        cudnn_attention_forward multi_head_attention native_multi_head_attention transform_bias_rescale_qkv
    """,
    "convolution": """
        convolution convolution_mode convolution_overrideable convolution_double conv1d conv2d conv3d
        conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d conv_depthwise2d conv_depthwise3d
        cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu cudnn_convolution_add_relu
        miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution mkldnn_convolution
        convolution_pointwise slow_conv2d slow_conv2d_forward slow_conv3d slow_conv3d_forward
        slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d thnn_conv2d
        nnpack_spatial_convolution im2col col2im
    """,
    "norm": """
        layer_norm native_layer_norm batch_norm native_batch_norm native_batch_norm_legit
        native_batch_norm_legit_no_training batch_norm_with_update batch_norm_no_update
        batch_norm_impl_index batch_norm_stats batch_norm_elemt batch_norm_gather_stats
        batch_norm_update_stats cudnn_batch_norm miopen_batch_norm group_norm native_group_norm
        instance_norm rms_norm fused_rms_norm local_response_norm weight_norm weight_norm_interface
    """,
    "elementwise": """
        add sub rsub subtract mul multiply div divide true_divide floor_divide remainder fmod pow
        float_power square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos
        atan atan2 arctan2 sinh cosh tanh asinh acosh atanh sigmoid log_sigmoid log_sigmoid_forward logit
        relu relu6 leaky_relu rrelu rrelu_with_noise prelu prelu_kernel elu selu celu gelu silu mish
        hardswish hardsigmoid hardtanh softplus softshrink hardshrink threshold glu clamp clamp_min
        clamp_max clip abs absolute neg negative sign sgn ceil floor round trunc fix frac erf erfc erfinv
        lgamma digamma xlogy copysign hypot heaviside where s_where masked_fill maximum minimum fmax fmin
        lerp addcmul addcdiv eq ne lt le gt ge not_equal less greater less_equal greater_equal logical_and
        logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift
        bitwise_right_shift and or xor not isnan isinf isfinite isclose isin nan_to_num dropout
        native_dropout fused_dropout feature_dropout alpha_dropout masked_scale bernoulli normal uniform
        random rand rand_like randn randn_like randint randint_like exponential cauchy geometric log_normal
        poisson arange range linspace logspace tril triu mse_loss l1_loss smooth_l1_loss huber_loss
        binary_cross_entropy binary_cross_entropy_with_logits poisson_nll_loss soft_margin_loss
        margin_ranking_loss hinge_embedding_loss cosine_similarity renorm complex polar angle conj_physical
        real imag outer nll_loss_backward nll_loss2d_backward
    """,
    "reduction": """
        sum nansum mean nanmean prod max min amax amin aminmax argmax argmin all any std var std_mean
        var_mean norm linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm nuclear_norm
        logsumexp softmax log_softmax softmin sparse_softmax safe_softmax masked_softmax softmax_data
        log_softmax_data cumsum cumprod cummax cummin logcumsumexp nll_loss nll_loss_nd nll_loss_forward
        nll_loss2d nll_loss2d_forward cross_entropy_loss ctc_loss kl_div count_nonzero trace dist median
        nanmedian scatter_add scatter_reduce index_add index_reduce segment_reduce sum_to_size
        grad_sum_to_size value_selecting_reduction equal allclose diff trapezoid foreach_norm foreach_max
    """,
    "embedding": """
        embedding embedding_dense embedding_sparse embedding_renorm embedding_bag embedding_bag_forward_only
        embedding_bag_dense embedding_bag_sparse embedding_bag_per_sample_weights
    """,
    "optimizer": """
        fused_adam fused_adamw fused_sgd fused_adagrad amp_foreach_non_finite_check_and_unscale
        amp_update_scale
    """,
    "quantize": """
        quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize fake_quantize
        fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fake_quantize_learnable
        fused_moving_avg_obs_fake_quant choose_qparams_optimized
    """,
    "copy": """
        copy to to_copy to_dtype type_as clone contiguous cat concat concatenate stack hstack vstack dstack
        fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full eye repeat
        repeat_interleave tile flip fliplr flipud roll rot90 index index_select index_put index_put_impl
        index_copy index_fill unsafe_index unsafe_index_put gather scatter take take_along_dim put
        masked_select masked_scatter pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d pin_memory copy_from copy_from_and_resize
        flatten_dense_tensors unflatten_dense_tensors split_with_sizes_copy split_copy chunk_cat
        foreach_copy all_gather_copy_in all_gather_copy_out slice_scatter select_scatter diagonal_scatter
        as_strided_scatter slice_backward select_backward diagonal_backward unfold_backward
        as_strided_backward narrow_copy diag diag_embed pixel_shuffle pixel_unshuffle channel_shuffle
        to_dense to_sparse to_mkldnn mkldnn_reorder_conv2d_weight nested_tensor_from_tensor_list
        copy_bucket_to_grad copy_backwards copy_slices cpu cuda float half bfloat16
    """,
    "other": """
        view view_as view_as_real view_as_complex reshape reshape_as reshape_alias unsafe_view t transpose
        numpy_t adjoint permute movedim swapaxes swapdims expand expand_as broadcast_to broadcast_tensors
        meshgrid squeeze unsqueeze flatten unflatten ravel select slice narrow split split_with_sizes chunk
        tensor_split hsplit vsplit unsafe_split unsafe_split_with_sizes unsafe_chunk unbind unfold
        as_strided detach alias diagonal conj resolve_conj resolve_neg neg_view lift lift_fresh atleast_1d
        atleast_2d empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize
        resize_as set set_data is_pinned is_same_size is_nonzero is_floating_point is_complex result_type
        can_cast promote_types item local_scalar_dense nonzero record_stream
        has_compatible_shallow_copy_type scalar_tensor size stride numel dim retain_grad requires_grad
        output_nr version data argsort sort msort topk kthvalue mode unique unique2 unique_consecutive
        unique_dim searchsorted bucketize histc histogram bincount multinomial randperm one_hot cdist pdist
        tril_indices triu_indices max_pool1d max_pool2d max_pool3d max_pool1d_with_indices
        max_pool2d_with_indices max_pool3d_with_indices mkldnn_max_pool2d avg_pool1d avg_pool2d avg_pool3d
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d
        adaptive_max_pool2d fractional_max_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
        upsample_trilinear3d grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator fft_fft
        fft_ifft fft_rfft fft_irfft fft_fft2 fft_r2c fft_c2r fft_c2c stft istft lstm gru rnn_tanh rnn_relu
        lstm_cell gru_cell cudnn_rnn miopen_rnn mkldnn_rnn_layer thnn_fused_lstm_cell thnn_fused_gru_cell
        cholesky linalg_cholesky linalg_qr linalg_svd linalg_eigh linalg_inv linalg_inv_ex linalg_solve
        linalg_lu linalg_det triangular_solve linalg_solve_triangular
    """,
}  # fmt: skip


@dataclass(frozen=True)
class OperatorPattern:
    """Names of host rows that are no operators of ATen, and the family of their own work.

    `kind` is 'named' where the name says which collective it is (`collective_kind` reads it), and null where
    a row belongs to communication without being a collective: a wait, or a wrapper around one.
    """

    family: str
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""
    library: str | None = None
    kind: str | None = None


# Tried before the look-up.
NAMED_OPERATORS: tuple[OperatorPattern, ...] = (
    OperatorPattern(
        "other",
        ("_c10d_functional",),
        "PyTorch, bookkeeping of functional collectives",
        "_c10d_functional::_wrap_tensor_autograd",
        also=r"_wrap_tensor",
    ),
    OperatorPattern(
        "communication",
        ("wait_tensor", "c10d::wait"),
        "PyTorch, the host waits for a collective",
        "_c10d_functional::wait_tensor",
    ),
    OperatorPattern(
        "communication",
        ("record_param_comms",),
        "PyTorch; the kind is in the arguments",
        "record_param_comms",
        kind="unknown",
    ),
    *(
        OperatorPattern(
            "communication",
            (prefix,),
            "PyTorch, annotation of a process group's backend",
            f"{prefix}all_reduce",
            also=rf"^{prefix}",
            library=library,
            kind="named",
        )
        for prefix, library in (("nccl:", "NCCL"), ("gloo:", "gloo"), ("mpi:", "MPI"), ("ucc:", "UCC"))
    ),
    OperatorPattern(
        "communication",
        ("c10d::", "c10d_functional", "symm_mem::"),
        "PyTorch, collectives as operators",
        "c10d::_reduce_scatter_base_",
        also=r"^(?:c10d|_?c10d_functional(?:_autograd)?|symm_mem)::",
        kind="named",
    ),
    OperatorPattern(
        "communication",
        ("_Req", "_Wait"),
        "TorchRec, autograd nodes that start a collective and wait for it",
        "All2All_Pooled_WaitBackward",
        also=r"^(?:All2All|AllGather|ReduceScatter|AllReduce)\w*_(?:Req|Wait)(?:Backward)?$",
    ),
    OperatorPattern(
        "optimizer",
        ("Optimizer.",),
        "PyTorch, ranges around optimizers, operators in old traces",
        "Optimizer.step#AdamW.step",
        also=r"^Optimizer\.(?:step|zero_grad)#",
    ),
    OperatorPattern(
        "embedding",
        (
            "SplitLookupFunction",
            "embedding_codegen",
            "bounds_check_indices",
            "PermutePooledEmbs",
            "permute_pooled_embs",
        ),
        "FBGEMM",
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
    ),
    OperatorPattern(
        "copy",
        ("fbgemm::permute_", "fb::fast_gather"),
        "FBGEMM, sparse features put in another order",
        "fbgemm::permute_2D_sparse_data",
    ),
    OperatorPattern(
        "reduction", ("complete_cumsum",), "FBGEMM, prefix sums", "fbgemm::asynchronous_complete_cumsum"
    ),
    OperatorPattern(
        "quantize",
        ("Quantized", "quantized_decomposed::"),
        "FBGEMM and PyTorch",
        "fbgemm::FloatToFP8RowwiseQuantized",
    ),
    OperatorPattern(
        "optimizer",
        ("_foreach_",),
        "PyTorch ATen, lists of tensors; copies and norms of lists are looked up",
        "aten::_foreach_addcdiv_",
        also=r"_foreach_(?!copy|norm|max)",
    ),
)

# Tried after the look-up, and after the kernels' patterns: custom operators are named like their kernels.
REMAINING_OPERATORS: tuple[OperatorPattern, ...] = (
    OperatorPattern(
        "attention", ("mha_",), "aiter, SGLang", "aiter::mha_batch_prefill", also=r"(?:::|_)mha_"
    ),
    OperatorPattern(
        "copy",
        ("kv_cache_update", "store_cache", "set_kv_buffer"),
        "vLLM and SGLang, writes to the key-value cache",
        "vllm::unified_kv_cache_update",
    ),
    OperatorPattern(
        "other",
        ("Backward",),
        "PyTorch autograd, a node that is not known; what it does are its children",
        "CustomGatherBackward",
        also=r"Backward\d*$",
    ),
    OperatorPattern(
        "other",
        ("torch::autograd::", "torch::jit::"),
        "PyTorch, engine of autograd and TorchScript",
        "torch::autograd::AccumulateGrad",
    ),
    OperatorPattern(
        "elementwise",
        ("torch::distributed::reducer::mul_out",),
        "PyTorch DDP, gradients divided by the number of ranks",
        "torch::distributed::reducer::mul_out",
    ),
    OperatorPattern(
        "other",
        (
            "PythonSubclass",
            "_FromTorchTensor",
            "_ToTorchTensor",
            "Redistribute",
            "RegisterPostBackwardFunction",
            "CompiledFunction",
            "Torch-Compiled Region",
            "TorchDynamo Cache Lookup",
            "AOTDispatcher Runtime Wrapper Prologue",
            "Pregraph bytecode",
            "_NoopSaveInputs",
        ),
        "PyTorch, tensor subclasses, DTensor, FSDP and compiled code: what they do are their children",
        "Torch-Compiled Region: 0/0",
    ),
    OperatorPattern(
        "other",
        ("ProfilerStep#", "enumerate(DataLoader)#", "DistributedDataParallel.forward"),
        "PyTorch, ranges that old traces list as operators",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    ),
    OperatorPattern(
        "other",
        ("forward op>", "<backward op>", "forward"),
        "TorchScript, methods",
        "<forward op>",
        also=r"^(?:<forward op>|<backward op>|forward)$",
    ),
)
