"""Say what fits and how fast it runs, before you rent a GPU.

`plan train` and `plan serve` count the memory of a model by component, model the time of a step or token
with the resource that bounds it, and rank the ways to make it fit. `plan offload` decides from a profile of a
real step which saved tensors to move to the host or to compute again. Every figure is predicted.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lostflops import units
from lostflops.cli.commands import described
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting

if TYPE_CHECKING:
    from lostflops.plan.hardware import Gpu, LinkCard
    from lostflops.plan.serve.inference import Serving
    from lostflops.plan.shape import Shape
    from lostflops.plan.train.calibration import MeasuredRun
    from lostflops.plan.train.job import Training
    from lostflops.plan.train.static_memory import Lora

RANK, TARGETS = 16, "q,v"  # of LoRA's adapters, where none are asked for
TRAIN = """\
Plan a training job: memory at its fullest moment, the time of a step, and the ways to make it fit.

  lostflops plan train --model llama-2-70b --method lora --gpu gh200 --gpus 4 --sequence 4096
"""
SERVE = """\
Plan inference: weights and KV cache, the time of prompts and of each token, and the ways to need less.

  lostflops plan serve --model llama-3-70b --gpu gh200 --sequence 4096 --generate 256 --batch 8
"""

OFFLOAD = """\
Plan which saved tensors wait in host memory or are computed again, so that a step fits a budget.

  lostflops plan offload --profile profile.json --budget "70 GiB" --link links.json --json plan.json

The profile is what `lostflops.optimize.saved_tensors(model, batch)` returns, as JSON; the plan is followed by
`lostflops.optimize.offload(model, plan=plan)`. A step that fits is left alone.
"""


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="what", metavar="WHAT", required=True, help="train, serve or offload")
    texts = (("train", TRAIN), ("serve", SERVE), ("offload", OFFLOAD))
    train, serve, offload = (described(below, name, text) for name, text in texts)
    _offload(offload)
    _both(train)
    _train(train)
    _both(serve)
    _serve(serve)


def _both(parser: ArgumentParser) -> None:
    say = parser.add_argument
    say("--model", required=True, help="a name such as llama-3-8b, or a Hugging Face config.json")
    say(
        "--gpu",
        required=True,
        help="a100, h100, h200, b200, mi300x, l40s, ... (docs/planning.md), or a JSON card",
    )
    _count(say, "--gpus", metavar="N", default=1, help="how many (default 1)")
    say("--link", help="pcie4, pcie5, c2c, c2c-four, ..., or a JSON card (default: what the GPU usually has)")
    say("--sustained", metavar="TFLOPS", type=float, help="what whole layers reach, if you measured it")
    say("--host-memory", metavar="SIZE", help='host memory per GPU: "256 GiB", or a number of GB')
    _count(
        say,
        "--sequence",
        metavar="N",
        help="tokens of a sequence (default 4096, or the model's longest)",
    )
    _count(say, "--tensor", metavar="N", help="tensor-parallel ranks (default: train 1, serve all)")
    say("--json", metavar="F", help="also write it as one JSON document to F; '-' prints it instead")


def _count(say: Callable[..., Any], flag: str, **more: Any) -> None:
    """A flag that takes a whole number, as in 4096 or 4,096."""
    say(flag, type=partial(units.count, flag=flag), **more)


def _train(parser: ArgumentParser) -> None:
    say = parser.add_argument
    say("--method", choices=("full", "lora", "qlora"), default="full", help="what is trained (default full)")
    _count(say, "--rank", metavar="R", help="of LoRA's adapters (default 16)")
    say("--targets", metavar="LIST", help="projections with adapters, or all (default q,v)")
    say(
        "--adapters",
        choices=("fp32", "16bit"),
        help="their precision (default fp32, as PEFT)",
    )
    say("--dropout", action="store_true", help="the adapters have dropout")
    say(
        "--optimizer",
        choices=("adam", "adam-fp32-gradients", "adam-16bit", "adam-fp32", "adam-8bit", "factored"),
        default="adam",
        help="default adam: 16-bit weights and gradients, fp32 master weights and moments",
    )
    say(
        "--sharding",
        choices=("none", "zero-1", "zero-2", "zero-3", "fsdp2"),
        default="none",
        help="of what data-parallel ranks hold (default none)",
    )
    _count(say, "--microbatch", metavar="N", default=1, help="sequences at a time (default 1)")
    _count(say, "--microbatches", metavar="N", default=1, help="of one step, per data-parallel rank")
    say("--sequence-parallel", action="store_true", help="tensor ranks split norms and inputs as well")
    _count(say, "--pipeline", metavar="N", default=1, help="pipeline stages (default 1)")
    say(
        "--schedule",
        choices=("gpipe", "1f1b", "interleaved", "dualpipe"),
        default="1f1b",
        help="of the pipeline",
    )
    _count(say, "--chunks", metavar="N", help="pieces per stage, if interleaved (default 2 then)")
    _count(say, "--expert", metavar="N", default=1, help="ranks that share the experts (default 1)")
    _count(say, "--context", metavar="N", default=1, help="ranks that share a sequence (default 1)")
    say(
        "--checkpoint",
        choices=("none", "alternate", "selective", "full"),
        default="none",
        help="what to recompute: nothing, every second matrix product, all but attention, whole layers",
    )
    say("--offload-optimizer", action="store_true", help="the CPU holds and updates the optimizer's states")
    say("--offload", metavar="N", default="0", help="layers whose activations leave the GPU: N, all or free")
    say("--stream-frozen", action="store_true", help="LoRA's frozen layers stay in host memory")
    say("--fused-loss", action="store_true", help="the loss is computed without keeping the logits")
    say(
        "--fp8",
        nargs="?",
        choices=("tensorwise", "rowwise"),
        const="tensorwise",
        help="matrix products in FP8, with a scale per tensor (default) or per row or block",
    )
    say(
        "--kernels",
        choices=("eager", "fused"),
        help="eager or compiled layers (default eager; fused with a pipeline or sequence parallelism)",
    )
    say(
        "--attention",
        choices=("flash", "scores"),
        default="flash",
        help="flash attention, or attention that keeps its scores (default flash)",
    )
    say("--async-tensor", action="store_true", help="tensor ranks exchange pieces while they multiply")
    say("--from-run", metavar="RUN", help="take the sustained rate from a recorded run of this very job")
    say("--unified", action="store_true", help="what is too much migrates to host memory")


def _serve(parser: ArgumentParser) -> None:
    say = parser.add_argument
    _count(say, "--generate", metavar="N", default=256, help="tokens after the prompt (default 256)")
    _count(say, "--batch", metavar="N", default=1, help="sequences at once (default 1)")
    say("--weight-bits", type=int, choices=(16, 8, 4), default=16, help="of the weights (default 16)")
    _count(
        say,
        "--group-size",
        metavar="N",
        help="4-bit weights that share a scale and zero (GPTQ, AWQ: 128)",
    )
    say("--cache-bits", type=int, choices=(16, 8), default=16, help="of keys and values (default 16)")
    say("--stream", metavar="SIZE", help='weights that stay in host memory: "20 GiB", or a number of GB')


def _offload(parser: ArgumentParser) -> None:
    say = parser.add_argument
    say("--profile", metavar="FILE", required=True, help="of one step's saved tensors")
    say(
        "--budget",
        metavar="SIZE",
        required=True,
        help='memory that the step may fill, as "70 GiB" or "512 MB"',
    )
    say("--link", default="pcie5", help="pcie4, pcie5, c2c, ..., or a JSON card (default pcie5, assumed)")
    say("--host-memory", metavar="SIZE", help="host memory that may be used (default: as much as is needed)")
    say("--only", choices=("offload", "recompute"), help="do not mix the two: one call then applies the plan")
    say("--json", metavar="F", help="write the plan as JSON to F; '-': only that")


def run(given: Namespace) -> None:
    if given.what == "offload":
        _planned_offload(given)
        return
    files.check_document(given.json, [word for word in (given.model, given.gpu, given.link) if word])
    _sane(given)
    from lostflops.plan import pages

    if given.what == "train":
        from lostflops.plan.train.ranking import rank

        asked, remark = _training(given), ""
        if given.from_run:
            from lostflops.plan.train import calibration

            asked, remark = calibration.calibrated(asked, _recorded(given.from_run))
        ranking = rank(asked)
        lines = [*pages.training(ranking), *([remark] if remark else [])]
        _say(given, pages.training_data(ranking) | {"calibration": remark or None}, lines)
    else:
        from lostflops.plan.serve import inference

        found = inference.options(_serving(given))
        verdict = inference.verdict(found)
        _say(given, pages.serving_data(found, verdict), pages.serving(found, verdict))


def _planned_offload(given: Namespace) -> None:
    from pathlib import Path

    from lostflops.plan import hardware
    from lostflops.plan.offload import class_decisions, page, saved_profile

    files.check_document(given.json, [given.profile, given.link])
    budget = units.size(given.budget, "--budget")
    host = None if given.host_memory is None else units.size(given.host_memory, "--host-memory")
    profile = saved_profile.read(Path(given.profile))
    may = (given.only,) if given.only else ("offload", "recompute")
    found = class_decisions.plan(profile, budget, hardware.link(given.link), host, may)
    _say(given, class_decisions.record(found), page.page(found))


def _sane(given: Namespace) -> None:
    """Numbers that nothing could be planned with are refused, by the flag they came from."""
    from lostflops.errors import BadOption

    for name, value in vars(given).items():
        flag = "--" + name.replace("_", "-")
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and not 1 <= value <= 1 << 30:
            raise BadOption(f"`{flag}` has to be from 1 to {1 << 30:,}.")
        if isinstance(value, float) and not 1e-6 <= value <= 1e9:
            raise BadOption(f"`{flag}` has to be a positive number.")


def _hardware(given: Namespace) -> tuple[Gpu, LinkCard]:
    import msgspec

    from lostflops.plan import hardware

    gpu = hardware.gpu(given.gpu)
    if given.sustained:
        gpu = hardware.one_rate(gpu, given.sustained * 1e12, "rate given")
    if given.host_memory:
        host = units.size(given.host_memory, "--host-memory", bare="GB")
        gpu = msgspec.structs.replace(gpu, host_memory=host)
    return gpu, hardware.link(given.link or gpu.link)


def _training(given: Namespace) -> Training:
    from dataclasses import replace

    from lostflops.errors import BadOption
    from lostflops.plan import models
    from lostflops.plan.train import job as training
    from lostflops.plan.train import layout, ranking, static_memory

    _refuse_unused(given)
    gpu, link = _hardware(given)
    model = models.named(given.model)
    asked = training.Training(
        shape=model,
        gpu=gpu,
        link=link,
        layout=layout.Layout(
            gpus=given.gpus,
            tensor=given.tensor or 1,
            sequence_parallel=given.sequence_parallel,
            pipeline=given.pipeline,
            schedule=given.schedule,
            chunks=given.chunks or (2 if given.schedule == "interleaved" and given.pipeline > 1 else 1),
            expert=given.expert,
            context=given.context,
            sharding=given.sharding,
        ),
        optimizer=static_memory.OPTIMIZERS[given.optimizer],
        sequence=_sequence(given, model),
        microbatch=given.microbatch,
        microbatches=given.microbatches,
        lora=None if given.method == "full" else _lora(given, model),
        checkpointing=given.checkpoint,
        streamed=given.stream_frozen,
        fused_loss=given.fused_loss,
        fp8=bool(given.fp8),
        fine=given.fp8 == "rowwise",
        kernels=given.kernels or ("fused" if given.pipeline > 1 or given.sequence_parallel else "eager"),
        attention=given.attention,
        async_tensor=given.async_tensor,
        optimizer_away=given.offload_optimizer,
        unified=given.unified,
    )
    training.check(asked)
    if given.offload in ("all", "free"):
        return ranking.changed(asked, {"offloaded": given.offload})
    if not given.offload.isdecimal() or int(given.offload) > asked.shape.layers:
        layers = asked.shape.layers
        raise BadOption(f"`--offload` is all, free, or a number of layers up to {layers}.")
    return replace(asked, offloaded=int(given.offload))


def _refuse_unused(given: Namespace) -> None:
    """Raise for what would change nothing of the plan, or not what it says."""
    from lostflops.errors import BadOption

    if given.method == "full":
        for flag in ("rank", "targets", "adapters", "dropout"):
            if getattr(given, flag):
                raise BadOption(
                    f"`--{flag}` is of LoRA's adapters, and all weights are trained here.",
                    "add `--method lora` or `--method qlora`.",
                )
    if (given.tensor or 1) == 1:
        for name in ("sequence_parallel", "async_tensor"):
            if getattr(given, name):
                flag = name.replace("_", "-")
                raise BadOption(f"`--{flag}` is of tensor ranks, and there is one.", "add `--tensor N`.")


def _sequence(given: Namespace, model: Shape) -> int:
    """As asked, or 4,096 tokens as far as the model was made for them."""
    return int(given.sequence or min(4096, model.longest or 4096))


def _recorded(path: str) -> MeasuredRun:
    """How long the ranks of a run computed in each step that counts, from its ledger."""
    import polars as pl

    from lostflops.errors import CannotAnswer, shown
    from lostflops.ingest import job
    from lostflops.plan.train import calibration
    from lostflops.session import Session, Skipped

    with waiting() as tell:
        session = Session(job.open([path], progress=tell))
        tables: list[pl.DataFrame] = []
        for recipe in ("step_ledger", "counted_steps"):
            answer = session.run(recipe)
            if isinstance(answer, Skipped):
                raise CannotAnswer("step-ledger", answer.reason)
            tables.append(answer.table)
    ledger, counted = tables
    computed = pl.col("ns").filter(pl.col("account") == "compute").sum()
    steps = (
        ledger.join(counted, on=["rank", "step"], how="semi")
        .group_by("rank", "step")
        .agg(compute=computed, whole=pl.col("ns").sum())
        .sort("rank", "step")
    )
    return calibration.measured(shown(path), steps.select("rank", "step", "compute", "whole").rows())


def _lora(given: Namespace, model: Shape) -> Lora:
    from lostflops.errors import BadOption, shown
    from lostflops.plan.modules import adapted, modules
    from lostflops.plan.train.static_memory import PROJECTIONS, Lora

    chosen = given.targets or TARGETS
    asked = PROJECTIONS if chosen == "all" else tuple(dict.fromkeys(chosen.split(",")))
    has = dict(modules(model))
    targets: list[str] = []
    for name in asked:
        short = name if name in has else name.removesuffix("_proj")
        if short not in PROJECTIONS and short not in has:
            names = ", ".join(dict.fromkeys([*PROJECTIONS, *has]))
            raise BadOption(f"There is no projection '{shown(name)}'.", f"choose from {names}, or `all`.")
        if given.targets not in (None, "all") and not adapted(model, Lora(targets=(short,))).modules:
            said = f"There is no projection '{shown(name)}' in {model.name}."
            raise BadOption(said, f"choose from {', '.join(has)}, or `all`.")
        targets.append(short)
    return Lora(
        rank=given.rank or RANK,
        targets=tuple(targets),
        fp32=given.adapters != "16bit",
        dropout=given.dropout,
        base_bits=4 if given.method == "qlora" else 16,
    )


def _serving(given: Namespace) -> Serving:
    from lostflops.errors import BadOption
    from lostflops.plan import models
    from lostflops.plan.serve import inference
    from lostflops.plan.train import layout

    gpu, link = _hardware(given)
    model = models.named(given.model)
    if not model.causal or model.encoder_layers:
        raise BadOption(
            f"{model.name} is no decoder: `plan serve` is for models that generate token by token.",
            "choose a decoder; `plan train` takes encoders as well.",
        )
    asked = inference.Serving(
        shape=model,
        gpu=gpu,
        link=link,
        layout=layout.Layout(gpus=given.gpus, tensor=given.tensor or given.gpus),
        prompt=_sequence(given, model),
        generated=given.generate,
        batch=given.batch,
        weight_bits=given.weight_bits,
        cache_bits=given.cache_bits,
        group=given.group_size or 0,
        streamed=units.size(given.stream, "--stream", bare="GB", least=0) if given.stream else 0,
    )
    weights = inference.Served(asked).weight_bytes
    if asked.streamed > weights:
        raise BadOption(f"`--stream` is more than the {weights / 1e9:.2f} GB of weights that a GPU has.")
    return asked


def _say(given: Namespace, content: dict[str, Any], lines: Sequence[str]) -> None:
    if not files.document(given.json, content):
        print(*lines, sep="\n")
