"""What the planner counts: models exactly, published tables, and the laws that memory obeys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.errors import BadModel, ImpossibleLayout, NoSuchModel
from lostflops.plan import model_config, published_tables, shape
from lostflops.plan.models import KNOWN, named
from lostflops.plan.shape import Shape, elements
from lostflops.plan.train import activation_memory, layout, static_memory
from lostflops.plan.train.job import Prediction
from lostflops.plan.train.layout import SHARDINGS, Layout, Sharding
from lostflops.plan.train.static_memory import OPTIMIZERS, PROJECTIONS, Lora
from planned import job, patient

ADAM = OPTIMIZERS["adam"]

# As the weights on Hugging Face add up to.
COUNTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200 - 58 * 256,  # without the router's biases, which are buffers
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_exactly_its_parameters(name: str) -> None:
    assert named(name).parameters() == COUNTS[name]


def test_a_layer_of_llama_2_70b_has_855_million() -> None:
    assert elements(named("llama-2-70b").layer(0)) == 855_654_400


@pytest.mark.parametrize(
    "spelled", ["meta-llama/Llama-2-70b-hf", "llama-2-70b", "Llama-2-70b-chat-hf", "LLAMA_2_70B"]
)
def test_a_model_is_known_by_its_usual_names(spelled: str) -> None:
    assert named(spelled).name == "llama-2-70b"


def test_an_unknown_model_is_said_with_a_suggestion() -> None:
    with pytest.raises(NoSuchModel, match="Did you mean 'llama-3-8b'"):
        named("lama-3-8b")


MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
}


@pytest.mark.parametrize(("config", "name"), [(MISTRAL, "mistral-7b"), (DEEPSEEK, "deepseek-v3")])
def test_a_config_json_gives_the_model_that_is_known_by_name(
    tmp_path: Path, config: dict[str, object], name: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given_ in (tmp_path, tmp_path / "config.json"):
        read = named(str(given_))
        assert replace(read, name=name, head_size=128) == KNOWN[name]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": 4097}, "not divisible"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "8 experts"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank"),
        ({"model_type": "whisper"}, "1,500 frames of sound"),
        ({"architectures": ["MistralForSequenceClassification"]}, "MistralForSequenceClassification"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "cross attention"),
        ({"model_type": "bert", "is_decoder": True}, "decoder"),
        ({"model_type": "bert", "tie_word_embeddings": False}, "one table"),
        (DEEPSEEK | {"attention_bias": True}, "latent attention has biases"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "norms stand behind"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "512 columns"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi"),
        (
            {
                "model_type": "llama4_text",
                "num_local_experts": 8,
                "num_experts_per_tok": 1,
                "moe_layers": [0, 3],
            },
            "layers with experts",
        ),
        ({"model_type": "llama4_text"}, "num_local_experts"),
        ({"model_type": "mixtral"}, "how many experts it has is absent"),
    ],
)
def test_a_config_that_describes_no_decoder_is_refused_in_words(change: dict[str, object], says: str) -> None:
    with pytest.raises(BadModel, match=says):
        model_config.from_config(json.dumps(MISTRAL | change).encode(), "odd")


def test_all_families_are_named_where_one_is_not_known() -> None:
    with pytest.raises(BadModel, match="'mamba2', and the weights of that family are not known") as refused:
        model_config.from_config(json.dumps(MISTRAL | {"model_type": "mamba2"}).encode(), "odd")
    assert ", ".join(model_config.FAMILIES) in str(refused.value)


def test_what_is_null_in_a_config_is_as_if_it_were_absent() -> None:
    null = {
        "tie_word_embeddings": None,
        "attention_bias": None,
        "sliding_window": None,
        "architectures": None,
    }
    read = [model_config.from_config(json.dumps(MISTRAL | more).encode(), "m") for more in (null, {})]
    assert read[0] == replace(read[1], window=0, unwindowed=())


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 5000, b'{"model_type": 3}'])
def test_a_config_that_is_none_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(BadModel):
        model_config.from_config(content, "odd")


@pytest.mark.parametrize("row", published_tables.rows(), ids=lambda row: f"{row.table[:12]}: {row.name}")
def test_a_published_number_is_met_within_a_hundredth_or_the_difference_explained(
    row: published_tables.PublishedNumber,
) -> None:
    if not row.why:
        assert row.difference is not None and abs(row.difference) <= 0.01


def test_published_tables_are_computed() -> None:
    """The explanations do not hide what should be met."""
    computed = {(row.name, row.recipe): row.computed for row in published_tables.rows()}
    assert computed["activations", "80 layers"] == pytest.approx(112, rel=0.01)
    assert computed["stage 3", "2 + 2 + 12 bytes per parameter, sharded"] == 1.875
    counted = [row for row in published_tables.rows() if not row.table.startswith("torchtitan")]
    assert all(abs(row.difference) <= 0.05 for row in counted if row.difference is not None)
    assert sum(row.computed is None for row in published_tables.rows()) == 3


# In units of one 16-bit hidden state, as measured storage by storage on real layers.
LAYERS = [
    (None, 24.266, 22.767, 24.517),
    (Lora(fp32=False), 17.770, 17.087, 18.024),
    (Lora(fp32=False, dropout=True), 19.770, 19.087, 20.024),
    (Lora(fp32=False, targets=("q", "k", "v", "o")), 17.774, 17.095, 18.032),
    (Lora(fp32=False, targets=PROJECTIONS), 22.280, 20.794, 22.544),
    (Lora(fp32=False, targets=PROJECTIONS, dropout=True), 31.030, 29.138, 31.294),
    (Lora(), 20.774, 20.095, 21.032),
]


@pytest.mark.parametrize("row", LAYERS)
def test_a_layer_saves_what_was_measured(row: tuple[Lora | None, float, float, float]) -> None:
    for name, units in zip(("llama-2-70b", "llama-2-7b", "llama-3-8b"), row[1:], strict=True):
        model = named(name)
        saved = activation_memory.layer_bytes(model, 0, 4096, Layout(), row[0])
        assert round(saved / (2 * 4096 * model.hidden), 3) == units


def test_adapters_have_the_published_number_of_parameters() -> None:
    weights = list(named("llama-2-70b").weights())
    assert elements(static_memory.adapters(weights, Lora())) == 32_768_000
    assert elements(static_memory.adapters(weights, Lora(targets=PROJECTIONS))) == 207_093_760


def test_four_bits_take_half_a_byte_and_their_scales() -> None:
    weights = [shape.Weight("q", 64, 256), shape.Weight("head", 8, 4), shape.Weight("norm", 8)]
    # 16,384 elements in 256 blocks of 64, whose scales are one block of 256.
    assert static_memory.base_bytes(weights, Lora(base_bits=4)) == 8192 + 256 + 4 + 2 * 32 + 2 * 8
    double = Lora(base_bits=4, double_quantised=False)
    assert static_memory.base_bytes(weights, double) == 8192 + 4 * 256 + 2 * 32 + 2 * 8


def test_a_factored_optimizer_keeps_rows_and_columns() -> None:
    weights = [shape.Weight("q", 64, 256), shape.Weight("norm", 8)]
    assert static_memory.factored_states(weights) == 4 * (64 + 256 + 8)


@settings(patient)
@given(
    count=st.integers(1, 10**12),
    ranks=st.integers(1, 5000),
    stage=st.integers(0, 3),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
)
def test_sharding_divides_what_it_shards_and_nothing_else(
    count: int, ranks: int, stage: int, optimizer: str
) -> None:
    whole = static_memory.states(count, OPTIMIZERS[optimizer])
    shared = static_memory.states(count, OPTIMIZERS[optimizer], stage, ranks)
    for size, mine, from_stage in zip(whole, shared, (3, 2, 1), strict=True):
        if stage < from_stage:
            assert mine == size
        else:
            assert 0 <= mine * ranks - size < ranks


SMALL = Shape("small", 64, 128, 6, 8, 4, 8, 96)
EXPERTS = replace(SMALL, name="experts", experts=4, experts_per_token=2, expert_width=32, dense_layers=1)


@settings(patient, max_examples=60)
@given(
    model=st.sampled_from([SMALL, EXPERTS, KNOWN["deepseek-v2-lite"], KNOWN["llama-3.2-1b"]]),
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.sampled_from([1, 2, 3]),
    data=st.sampled_from([1, 2, 5]),
    sharding=st.sampled_from(SHARDINGS),
)
def test_all_ranks_together_hold_the_whole_model(
    model: Shape, tensor: int, pipeline: int, data: int, sharding: Sharding
) -> None:
    here = Layout(gpus=tensor * pipeline * data, tensor=tensor, pipeline=pipeline, sharding=sharding)
    layout.check(model, here, 4096)
    split = sum(elements(list(layout.stage_weights(model, here, stage))) for stage in range(pipeline))
    whole = model.parameters()
    twice = elements(model.before()) if model.tied and pipeline > 1 else 0
    replicated = sum(w.elements for w in model.weights() if w.split == "whole")
    assert split * tensor == whole + twice + replicated * (tensor - 1)
    stages = [static_memory.parts(model, here, stage, ADAM) for stage in range(pipeline)]
    weights, gradients, moments = (sum(parts[i].bytes for parts in stages) for i in range(3))
    sizes = (4, 4, 8) if sharding == "fsdp2" else (2, 2, 12)
    shared = [data if here.stage >= stage else 1 for stage in (3, 2, 1)]
    for held, size, ranks in zip((weights, gradients, moments), sizes, shared, strict=True):
        # Each stage rounds its shard of dense weights and of experts up.
        assert 0 <= held * ranks - size * split < 2 * pipeline * ranks


@settings(patient, max_examples=40)
@given(
    model=st.sampled_from(["llama-3.2-1b", "mixtral-8x7b", "deepseek-v2-lite"]),
    sequence=st.sampled_from([64, 1024, 4096, 32768]),
    batch=st.sampled_from([1, 2, 8]),
    checkpointing=st.sampled_from(activation_memory.CHECKPOINTINGS),
    lora=st.sampled_from([None, Lora(), Lora(base_bits=4, targets=PROJECTIONS)]),
    offloaded=st.integers(0, 16),
    pipeline=st.sampled_from([(1, "1f1b", 1), (2, "1f1b", 1), (2, "gpipe", 1), (2, "interleaved", 2)]),
)
def test_parts_add_up_and_memory_grows_with_sequence_and_batch(
    model: str,
    sequence: int,
    batch: int,
    checkpointing: activation_memory.Checkpointing,
    lora: Lora | None,
    offloaded: int,
    pipeline: tuple[int, layout.Schedule, int],
) -> None:
    stages, schedule, chunks = pipeline
    here = Layout(gpus=2, pipeline=stages, schedule=schedule, chunks=chunks)
    asked = job(
        model,
        sequence=sequence,
        microbatch=batch,
        microbatches=3,
        checkpointing=checkpointing,
        lora=lora,
        layout=here,
        offloaded=offloaded,
    )
    now = Prediction(asked)
    assert now.peak.bytes == sum(part.bytes for part in now.peak.parts)
    assert all(isinstance(part.bytes, int) and part.bytes >= 0 for m in now.moments for part in m.parts)
    assert now.step_ns == sum(span.ns for span in now.spans) > 0
    for more in (replace(asked, sequence=2 * sequence), replace(asked, microbatch=2 * batch)):
        assert Prediction(more).peak.bytes > now.peak.bytes
    assert Prediction(replace(asked, offloaded=0)).peak.bytes >= now.peak.bytes


def test_attention_that_was_kept_is_not_brought_back_again() -> None:
    """Llama-3-8B: 4,096 tokens of 32 heads of 128, in 16 bits, and a log-sum-exp in fp32."""
    model, here = named("llama-3-8b"), Layout()
    kept, all_of_it = (
        activation_memory.recomputed_bytes(model, 0, 4096, here, None, how) for how in ("selective", "full")
    )
    assert all_of_it - kept == 4096 * (2 * 32 * 128 + 4 * 32)


def test_checkpointing_keeps_inputs_and_one_live_layer() -> None:
    asked = job("llama-2-70b", lora=Lora(), checkpointing="full")
    parts = {
        p.name: p.bytes for m in Prediction(asked).moments if m.name == "backward begins" for p in m.parts
    }
    assert parts["activations"] == 80 * 2 * 4096 * 8192
    live = activation_memory.layer_bytes(asked.shape, 0, 4096, Layout(), Lora())
    assert parts["one layer recomputed"] == live


def test_logits_are_the_peak_of_a_large_vocabulary() -> None:
    here = Layout(gpus=8, sharding="fsdp2")
    now = Prediction(job(sequence=8192, checkpointing="full", layout=here))
    logits = {part.name: part.bytes for part in now.peak.parts}["logits and loss"]
    assert now.peak.name == "loss"
    assert logits / 1e9 == pytest.approx(14.7, rel=0.01)


def test_the_first_stage_of_a_pipeline_keeps_most_microbatches() -> None:
    model = named("llama-3-8b")  # 32 layers: 8 on each of four stages
    here = Layout(gpus=4, pipeline=4)
    assert [layout.layers_alive(model, here, s, 16) for s in range(4)] == [32, 24, 16, 8]
    assert layout.layers_alive(model, replace(here, schedule="gpipe"), 0, 16) == 16 * 8
    # p * (1 + (p - 1) / (p * v)) microbatches of a stage: 4 * (1 + 3 / 8) * 8 layers.
    assert layout.layers_alive(model, replace(here, schedule="interleaved", chunks=2), 0, 16) == 44
    assert layout.layers_alive(model, here, 0, 2) == 16


def test_fsdp_keeps_fp32_shards_that_are_their_own_master() -> None:
    model = named("llama-3-8b")
    here = Layout(gpus=8, sharding="fsdp2")
    sizes = [part.bytes for part in static_memory.parts(model, here, 0, ADAM)]
    assert sizes == [model.parameters() // 2, model.parameters() // 2, model.parameters()]


@pytest.mark.parametrize(
    ("model", "here", "says"),
    [
        ("llama-3-8b", Layout(gpus=6, tensor=4), "6 GPUs cannot be split"),
        ("llama-3-8b", Layout(gpus=1, tensor=4), "1 GPU cannot be split"),
        ("llama-3-8b", Layout(gpus=3, tensor=3), "32 attention heads"),
        ("llama-3-8b", Layout(gpus=64, pipeline=64), "fewer than the 64 pieces"),
        ("llama-3-8b", Layout(gpus=2, expert=2), "no experts"),
        ("mixtral-8x7b", Layout(gpus=3, expert=3), "8 experts"),
        ("mixtral-8x7b", Layout(gpus=4, tensor=4, expert=4), "data-parallel ranks"),
        ("llama-3-8b", Layout(gpus=3, context=3), "4096 tokens"),
        ("llama-3-8b", Layout(gpus=2, pipeline=2, chunks=2), "interleaved"),
        ("qwen2.5-7b", Layout(gpus=8, tensor=8), "28 attention heads"),
    ],
)
def test_a_layout_that_does_not_come_out_even_is_refused_in_words(
    model: str, here: Layout, says: str
) -> None:
    with pytest.raises(ImpossibleLayout, match=says):
        Prediction(job(model, layout=here))


def test_offloaded_layers_leave_two_under_way_on_the_gpu() -> None:
    asked = job("llama-3-8b", offloaded=25)  # of 32 layers
    parts = {
        p.name: p.bytes for m in Prediction(asked).moments if m.name == "backward begins" for p in m.parts
    }
    one = activation_memory.layer_bytes(asked.shape, 0, 4096, Layout())
    assert parts["activations"] == (32 - 25 + 2) * one
    assert Prediction(asked).host_bytes == 25 * one
