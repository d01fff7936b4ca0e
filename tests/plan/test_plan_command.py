"""`lostflops plan`: what it prints, what it writes, and what it refuses in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lostflops import cli

LORA = ["plan", "train", "--model", "llama-2-70b", "--method", "lora", "--gpu", "gh200", "--gpus", "4"]
SERVE = ["plan", "serve", "--model", "llama-3-70b", "--gpu", "gh200", "--batch", "8"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == cli.ANSWERED
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == cli.CANNOT_ANSWER
    return capsys.readouterr().err


def test_a_training_job_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *LORA)
    assert "It does not fit as it is: 150.4 GB over" in text
    assert "  frozen base                 137.95" in text
    for title in ("memory per GPU", "step", "each remedy alone", "what fits, fastest first"):
        assert f"  {title}, predicted" in text


def test_inference_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, *SERVE)
    assert "stream weights" in text and "KV cache" in text and "time, predicted" in text


@pytest.mark.parametrize("command", [LORA, SERVE])
def test_json_holds_parts_that_add_up_and_says_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str], command: list[str], tmp_path: Path
) -> None:
    content = json.loads(said(capsys, *command, "--json", "-"))
    assert content["status"] == "predicted"
    for way in content["ways"]:
        parts = sum(part["bytes"] for part in way["parts"])
        assert parts == (way["peak_bytes"] if "peak_bytes" in way else way["bytes"])
    text = said(capsys, *command, "--json", str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text()) == content
    assert content["verdict"] in text


def test_offload_takes_a_number_all_or_what_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        wanted: json.loads(said(capsys, *LORA, "--offload", wanted, "--json", "-"))["asked"][
            "offloaded_layers"
        ]
        for wanted in ("0", "7", "all", "free")
    }
    assert found == {"0": 0, "7": 7, "all": 78, "free": 78}


def test_every_optimizer_and_way_of_sharding_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    from lostflops.plan.train.layout import SHARDINGS
    from lostflops.plan.train.static_memory import OPTIMIZERS

    peaks: dict[str, int] = {}
    for optimizer in OPTIMIZERS:
        command = ["plan", "train", "--model", "llama-3.2-1b", "--gpu", "a100", "--optimizer", optimizer]
        peaks[optimizer] = json.loads(said(capsys, *command, "--json", "-"))["asked"]["moments"][-1]["bytes"]
    assert peaks["factored"] < peaks["adam-8bit"] < peaks["adam-16bit"] < peaks["adam"]
    for sharding in SHARDINGS:
        said(
            capsys,
            "plan",
            "train",
            "--model",
            "llama-3.2-1b",
            "--gpu",
            "h100",
            "--gpus",
            "4",
            "--sharding",
            sharding,
        )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train --model nothing --gpu h100", "no model called 'nothing'"),
        ("train --model llama-3-8b --gpu h1000", "Did you mean 'h100'?"),
        ("train --model llama-3-8b --gpu h100 --gpus 0", "`--gpus` has to be from 1"),
        ("train --model llama-3-8b --gpu h100 --gpus 6 --tensor 4", "6 GPUs cannot be split"),
        ("train --model llama-3-8b --gpu a100 --fp8", "no FP8"),
        ("train --model llama-3-8b --gpu h100 --method lora --targets q,x", "no projection 'x'"),
        ("train --model llama-3-8b --gpu h100 --rank 64", "`--rank` is of LoRA's adapters"),
        ("train --model llama-3-8b --gpu h100 --targets all", "`--targets` is of LoRA's adapters"),
        ("train --model llama-3-8b --gpu h100 --adapters 16bit", "`--adapters` is of LoRA's adapters"),
        ("train --model llama-3-8b --gpu h100 --dropout", "`--dropout` is of LoRA's adapters"),
        (
            "train --model llama-3-8b --gpu h100 --sequence-parallel",
            "`--sequence-parallel` is of tensor ranks",
        ),
        ("train --model llama-3-8b --gpu h100 --async-tensor", "`--async-tensor` is of tensor ranks"),
        (
            "train --model llama-3-8b --gpu h100 --microbatch -3",
            "`--microbatch` is '-3', which is below zero",
        ),
        ("train --model llama-3-8b --gpu h100 --offload some", "all, free, or a number"),
        ("train --model llama-3-8b --gpu h100 --offload 33", "up to 32"),
        ("train --model llama-3-8b --gpu h100 --sustained nan", "`--sustained`"),
        ("train --model llama-3-8b --gpu h100 --link nowhere", "no link card"),
        (
            "train --model deepseek-v2-lite --gpu h100 --method lora --targets up",
            "no projection 'up' in deepseek-v2-lite",
        ),
        ("train --model llama-3-8b --gpu h100 --stream-frozen", "Only frozen weights"),
        ("train --model absent.json --gpu h100", "could not be read"),
        ("serve --model llama-3-8b --gpu h100 --stream 17", "more than the 16.06 GB"),
        ("serve --model llama-3-8b --gpu h100 --gpus 3", "attention heads"),
        ("serve --model t5-base --gpu h100", "t5-base is no decoder"),
        ("serve --model vit-base --gpu h100", "vit-base is no decoder"),
        (
            "train --model llama-3-8b --gpu h100 --optimizer adam-8bit --offload-optimizer",
            "Only Adam with fp32",
        ),
        ("serve --model llama-3-8b --gpu h100 --json nowhere/x.json", "could not be written"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in refused(capsys, "plan", *words.split())


def test_a_measured_rate_and_the_host_s_memory_replace_the_assumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, *LORA, "--sustained", "600", "--host-memory", "1")
    assert "rate given; 600 TFLOP/s sustained" in text
    ways = text.partition("what fits")[2].partition("To apply")[0]
    assert "checkpoint" in ways and "offload" not in ways


def test_a_recorded_run_replaces_the_assumed_rate(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(Path(__file__).parents[2] / "examples" / "runs" / "ddp")
    command = ["plan", "train", "--model", "llama-3.2-1b", "--gpu", "h100", "--gpus", "4", "--from-run", run]
    content = json.loads(said(capsys, *command, "--json", "-"))
    assert "sustained rate from the run" in content["gpu_status"]
    assert content["calibration"].startswith("Calibrated with ")
    assert content["calibration"] in said(capsys, *command)
    assert "no file or folder" in refused(capsys, *command[:-1], "nowhere")


def test_a_long_sequence_is_said_to_take_longer_than_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "train", "--model", "llama-3-8b", "--gpu", "h100", "--sequence"]
    for sequence, slower in (("32768", True), ("8192", False)):
        assert ("expect more time" in said(capsys, *command, sequence, "--sustained", "450")) == slower
    assert "expect more time" not in said(capsys, *command, "32768")


def test_every_function_that_applies_a_remedy_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    from lostflops import optimize
    from lostflops.plan.train.ranking import APPLY

    named: set[str] = set(APPLY.values())
    for command in (LORA, SERVE):
        text = said(capsys, *command)
        content = json.loads(said(capsys, *command, "--json", "-"))
        ways = [*content.get("alone", []), *content["ways"]]
        for way in ways:
            assert isinstance(way["apply"], list)
            named.update(way["apply"])
            for name in way["apply"]:
                assert name.rpartition(".")[2] in text
        assert any(way["apply"] for way in ways)
    for name in named:
        module, _, function = name.rpartition(".")
        assert module == "lostflops.optimize"
        assert callable(getattr(optimize, function)), name


def test_a_way_names_what_applies_each_of_its_changes(capsys: pytest.CaptureFixture[str]) -> None:
    ways = json.loads(said(capsys, *LORA, "--json", "-"))["ways"]
    both = next(
        way for way in ways if {"offload activations", "stream frozen weights"} <= set(way["changes"])
    )
    assert both["apply"] == ["lostflops.optimize.offload", "lostflops.optimize.stream_frozen"]
    sharded = next(way for way in ways if "ZeRO stage 3" in way["changes"])
    assert len(sharded["apply"]) == len(sharded["changes"]) - 1


def test_every_family_of_models_and_every_card_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    from lostflops.plan.hardware import GPUS

    models = ["gpt2-xl", "flan-t5-xl", "vit-large", "gemma-2-9b", "gemma-3-1b", "qwen3-30b-a3b"]
    for number, gpu in enumerate(GPUS):
        model = models[number % len(models)]
        text = said(capsys, "plan", "train", "--model", model, "--gpu", gpu, "--gpus", "4")
        assert "predicted" in text and f"GPU card {gpu}: " in text
        assert "was made for" not in text
    assert "on 1 rtx-4090" in said(capsys, "plan", "train", "--model", "gpt2", "--gpu", "RTX4090")


def test_a_job_that_is_asked_for_in_full_is_planned_so(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "plan",
        "train",
        "--model",
        "llama-3.1-405b",
        "--gpu",
        "h100",
        "--gpus",
        "8192",
        "--tensor",
        "8",
    ]
    command += ["--pipeline", "16", "--sequence-parallel", "--sequence", "8192", "--microbatches", "32"]
    assert "It fits as it is, with" in said(capsys, *command, "--sharding", "fsdp2")
    eager = said(capsys, *command, "--sharding", "fsdp2", "--kernels", "eager")
    assert "It does not fit as it is" in eager
    found = json.loads(said(capsys, *command, "--sharding", "zero-1", "--json", "-"))
    assert [setting["framework"] for setting in found["settings"]] == ["Megatron-LM"]
    assert found["headline"] == [] and found["longest_sequence"] == 131072


def test_fp8_is_finer_and_slower_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "plan",
        "train",
        "--model",
        "llama-3.1-8b",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--sharding",
        "fsdp2",
    ]
    steps = [
        json.loads(said(capsys, *command, *more, "--json", "-"))["asked"]["step_ns"]
        for more in ([], ["--fp8", "rowwise"], ["--fp8"])
    ]
    assert steps[0] > steps[1] > steps[2]


def test_t5_runs_beyond_what_it_was_made_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "train", "--model", "t5-base", "--gpu", "h100", "--sequence", "1024"]) == 0
    said = capsys.readouterr().out
    assert "1,024 run as they are, because its positions are relative" in said and "rotary" not in said


def test_adapters_are_not_advised_where_they_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "train", "--model", "deepseek-v3", "--gpu", "h100", "--method"]
    assert cli.main([*words, "lora"]) == cli.main([*words, "qlora"]) == 0
    said = capsys.readouterr().out
    assert "`--method lora`" not in said and said.count("`--method qlora`") == 1


def test_a_job_that_fits_does_so_with_unified_memory_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing migrates where nothing is over: the verdict is the one without `--unified`."""
    said: list[str] = []
    for more in ([], ["--unified"]):
        words = ["plan", "train", "--model", "gpt2", "--gpu", "h100", "--optimizer", "adam-16bit", *more]
        assert cli.main(words) == 0
        said.append(capsys.readouterr().out.splitlines()[1])
    assert said[0] == said[1] and said[0].startswith("It fits as it is")
