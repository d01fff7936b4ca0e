"""Callbacks for training frameworks: remedies on and off again, steps marked and logged, results the same."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import recorded
import tiny_models
from lostflops.capture.record.injected.lostflops_recorder.steps import hooks
from lostflops.ingest.step_log import reader as step_logs
from lostflops.integrations import remedies
from lostflops.integrations.remedies import Remedies, checked
from lostflops.integrations.steps import Steps, tokens_in
from lostflops.integrations.training import TrainingRun
from lostflops.optimize import Refused, ThreadedDevice
from lostflops.optimize.activations.offload.report import OneWay

torch.set_num_threads(1)

STEPS = 4
OFFLOAD: dict[str, Any] = {"plan": "everything", "threshold": 0, "device": ThreadedDevice()}


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + 12) % tiny_models.VOCABULARY
        return {"input_ids": ids, "labels": ids}


def state(model: Any) -> dict[str, Any]:
    """All that a remedy might leave behind."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"{name}.class"] = type(module)
        found[f"{name}.own"] = sorted(key for key in vars(module) if key in ("forward", "__call__"))
        found[f"{name}.hooks"] = sum(len(v) for k, v in vars(module).items() if k.endswith("_hooks") and v)
    found["iterator"] = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    return found


def log_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "lostflops").glob("node-*/steps-00000-a0.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses_in(folder: Path) -> list[Any]:
    ((log,), _) = step_logs.logged(step_logs.documents([folder / "lostflops"]))
    return [step.loss for step in log.steps]


def report_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "lostflops" / "report-00000.jsonl").read_text().splitlines()[-1])


# --- which remedies ---


def test_a_remedy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(Refused, match=r"no remedy 'offlaod'.*\n.*fp8, checkpoint, stream_frozen, offload"):
        checked({"offlaod": True})
    with pytest.raises(Refused, match="before you hand the model over"):
        checked({"lora": {"rank": 4}})
    with pytest.raises(Refused, match="use its setting"):
        checked({"to_bf16": True})
    with pytest.raises(Refused, match="offload='70 GiB' says nothing"):
        checked({"offload": "70 GiB"})


def test_remedies_are_entered_in_one_order_and_left_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class AppliedRemedy:
        def __init__(self, name: str, fails: bool) -> None:
            self.name, self.fails = name, fails

        def __enter__(self) -> AppliedRemedy:
            if self.fails:
                raise Refused("no", "yes")
            told.append(f"+{self.name}")
            return self

        def __exit__(self, *_: Any) -> None:
            told.append(f"-{self.name}")

        def report(self) -> str:
            if self.name == "checkpoint":
                raise Refused("nothing ran", "run")
            return f"{self.name} was on"

    for function in remedies.FUNCTIONS.values():
        monkeypatch.setitem(
            vars(remedies.optimize), function,
            lambda _, fails=False, name=function: AppliedRemedy(name, fails),
        )  # fmt: skip
    given = Remedies({"offload": True, "stream_frozen": True, "fp8": True, "checkpoint": {}})
    given.enter(torch.nn.Linear(2, 2))
    reports = given.leave()
    assert told == [
        "+to_fp8", "+checkpoint", "+stream_frozen", "+offload",
        "-offload", "-stream_frozen", "-checkpoint", "-to_fp8",
    ]  # fmt: skip
    assert reports["fp8"] == "to_fp8 was on" and "nothing ran" in reports["checkpoint"]["error"]
    told.clear()
    failing = Remedies({"offload": {"fails": True}, "checkpoint": True})
    with pytest.raises(Refused):
        failing.enter(torch.nn.Linear(2, 2))
    assert told == ["+checkpoint", "-checkpoint"]
    assert failing.leave() == {}


def test_a_report_is_written_as_it_says_itself() -> None:
    sent = OneWay(bytes=3_000, copies=7, copy_ns=2_000, stalled_ns=500)
    assert remedies.plain(sent)["bytes_per_second"] == 1.5e9, "not its fields alone"
    assert remedies.plain({"a": 1}) == {"a": 1} and remedies.plain(Path("b")) == "b"


def test_weights_in_parts_are_not_streamed() -> None:
    model = torch.nn.Linear(2, 3)
    model.weight.ds_id = 0  # as DeepSpeed marks them  # pyright: ignore
    with pytest.raises(Refused, match="use offload_param"):
        Remedies({"stream_frozen": {"resident": 0}}).enter(model)


ON = {
    "fp8": {"small": True},
    "checkpoint": {"keep": ()},
    "stream_frozen": {"resident": "120 KB", "device": OFFLOAD["device"]},
    "offload": OFFLOAD,
}


def trained(*names: str, adapters: bool) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    """Losses, weights and reports of a model of which a part is frozen."""
    model = tiny_models.llama()
    if adapters:
        model = tiny_models.lora(model)
    else:
        model.model.layers[:3].requires_grad_(False)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    on = Remedies({name: ON[name] for name in reversed(names)})
    on.enter(model)
    losses = []
    for seed in range(3):
        loss = model(**tiny_models.llama_batch(sequence=32, seed=seed)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, weights, on.leave()


@pytest.mark.parametrize("adapters", [True, False])
def test_all_remedies_together_compute_what_the_model_computes(adapters: bool) -> None:
    alone = () if adapters else ("fp8",)  # FP8 leaves frozen layers alone, and rounds the others
    together = (*alone, "checkpoint", "stream_frozen", "offload")
    wanted, weights, _ = trained(*alone, adapters=adapters)
    found, others, reports = trained(*together, adapters=adapters)
    assert found == wanted
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    assert list(reports) == list(together)
    assert (reports["checkpoint"]["forwards"], reports["checkpoint"]["recomputed"]) == (12, 12)
    assert reports["stream_frozen"]["bytes_in"] > 0 and reports["stream_frozen"]["bytes_out"] == 0
    assert reports["offload"]["moved"] > 0 and reports["offload"]["into"]["bytes"] > 0


# --- steps ---


def test_a_step_log_is_what_why_reads(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2)
    for repeat in range(2):  # a second training in the same folder is another attempt
        steps = Steps(tmp_path)
        for _, batch in zip(range(3 + repeat), loader, strict=False):
            steps.begin("step")
            steps.microbatch(tokens_in(batch))
            with steps.part("forward"):
                pass
            steps.passed_backward()
            steps.begin("backward")  # left open: ends with its step
            steps.step_ended()
        summary = steps.stop()
        assert summary["steps"] == 3 + repeat and summary["timed_steps"] == 2 + repeat
        assert summary["tokens_per_second"] > 0 and 0 < summary["data_wait_share"] < 1
        first, third = summary["quartile_step_seconds"]
        assert 0 < first <= summary["median_step_seconds"] <= third
    logs, notes = step_logs.logged(step_logs.documents([tmp_path / "lostflops"]))
    assert notes == []
    table = step_logs.tables(logs)["step_log"]
    assert table["step"].to_list() == [0, 1, 2, 3] and table["micro_steps"].to_list() == [1, 1, 1, 1]
    assert table["duration"][0] is None and table["duration"][1] > 0
    assert table["data"][1] > 0
    lines = log_of(tmp_path)
    assert [line["tokens"] for line in lines if "step" in line] == [24, 24, 24]
    assert lines[-1]["kind"] == "end" and lines[-1]["steps"] == 3


def test_an_evaluation_is_not_waiting_for_data_and_spoils_no_median() -> None:
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2)
    before = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    steps = Steps(None)
    for n in range(3):
        next(iter(loader))
        if n == 1:
            waited = steps._spent["data"]
            with steps.part("evaluation"):
                list(loader)
            assert steps._spent["data"] == waited > 0
        steps.step_ended()
    assert len(steps.durations) == 1
    steps.stop()
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is before


def test_the_boot_shims_log_is_not_doubled(tmp_path: Path) -> None:
    """Under `lostflops record` the recorder writes the steps; the callback marks them."""
    script = textwrap.dedent(
        """
        from lostflops.integrations.training import TrainingRun
        training = TrainingRun("accelerate", "out", {})
        steps = None
        def train(n):
            global steps
            for i in range(n):
                if steps is not None:
                    steps.begin("step"); steps.begin("forward")
                optimizer.zero_grad()
                loss = model(torch.randn(4, 8)).square().mean()
                if steps is not None:
                    steps.end("forward")
                loss.backward()
                optimizer.step()
                if steps is None:
                    steps = training.begin(model)  # after the recorder's first step
                else:
                    steps.step_ended()
        train(8)
        training.end()
        """
    )
    run = recorded.record_script(tmp_path, script)
    assert run.status == 0, run.said
    assert len(run.steps()) == 8
    assert not list((tmp_path / "out" / "lostflops").glob("node-*"))
    assert report_of(tmp_path / "out")["steps"]["steps"] == 7
    import gzip

    (trace,) = run.run.glob("node-*/window-*.json.gz")
    names = gzip.decompress(trace.read_bytes()).decode()
    assert '"lostflops:training:forward"' in names and '"lostflops:training:step"' in names


def test_only_a_recorder_that_records_keeps_us_from_logging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(CLOCK=SimpleNamespace(on=True))
    monkeypatch.setitem(sys.modules, "lostflops_recorder.steps.clock", clock)
    Steps(tmp_path).stop()
    assert not (tmp_path / "lostflops").exists()
    clock.CLOCK.on = False  # it has met a fault and stopped
    Steps(tmp_path).stop()
    assert log_of(tmp_path)[-1]["kind"] == "end"


# --- Hugging Face Trainer ---


def trainer(folder: Path, callbacks: list[Any], data: Any = None, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_strategy="no", logging_steps=1, disable_tqdm=True, seed=3, learning_rate=1e-2,
        gradient_accumulation_steps=2, **more,
    )  # fmt: skip
    made = transformers.Trainer(
        tiny_models.llama(layers=2), arguments, train_dataset=data or Texts(),
        eval_dataset=torch.utils.data.Subset(Texts(), range(4)), callbacks=callbacks,
    )  # fmt: skip
    made.remove_callback(transformers.PrinterCallback)
    return made


def losses(made: Any) -> list[float]:
    return [line["loss"] for line in made.state.log_history if "loss" in line]


def test_a_trainer_gives_the_same_losses_and_is_left_as_it_was(tmp_path: Path) -> None:
    from lostflops.integrations.transformers_trainer import LostflopsCallback

    plain = trainer(tmp_path / "plain", [])
    plain.train()
    callback = LostflopsCallback(checkpoint={"keep": ()}, offload=OFFLOAD)
    made = trainer(tmp_path / "with", [callback], eval_strategy="steps", eval_steps=3)
    before = state(made.model)
    made.train()
    assert losses(made) == losses(plain) and len(losses(made)) == STEPS
    for a, b in zip(made.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert state(made.model) == before
    assert set(vars(made)) == set(vars(plain)) and "backward" not in vars(made.accelerator)
    report = report_of(tmp_path / "with")
    assert report == json.loads(json.dumps(callback.report))
    assert report["steps"]["steps"] == STEPS and report["failed"] is None
    assert report["steps"]["tokens_per_second"] > 0
    assert list(report["remedies"]) == ["checkpoint", "offload"]
    assert "error" not in str(report["remedies"]["offload"]["report"])[:60]
    steps = [line for line in log_of(tmp_path / "with") if "step" in line]
    assert [line["micro_steps"] for line in steps] == [2, 2, 2, 2]
    assert [line["tokens"] for line in steps] == [48] * STEPS
    assert all(line["forward"] > 0 and line["backward"] > 0 and line["optimizer"] > 0 for line in steps)
    assert [bool(line["evaluation"]) for line in steps] == [False, False, False, True]
    assert any("lostflops/median_step_seconds" in line for line in made.state.log_history)
    # The trainer logs the mean over microbatches, with four decimals at least.
    logged = [float(line["loss"]) for line in made.state.log_history if "loss" in line]
    assert losses_in(tmp_path / "with") == pytest.approx(logged, abs=1e-3)


def test_what_a_trainer_logs_is_read_from_outside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lostflops record` wraps the Trainer's `log`, in jobs without a callback of ours."""
    told: list[Any] = []
    monkeypatch.setattr(hooks, "CLOCK", SimpleNamespace(on=True, window=None, logged=told.append))
    made = trainer(tmp_path, [], eval_strategy="steps", eval_steps=3)
    module = pytest.importorskip("transformers.trainer")
    monkeypatch.setattr(module.Trainer, "log", module.Trainer.log)  # put back afterwards
    hooks.trainer(module)
    made.train()
    assert [loss for loss in told if loss is not None] == losses(made) and len(losses(made)) == STEPS
    assert len(told) == len(made.state.log_history)  # evaluations and the end of training have no such loss


@pytest.mark.parametrize("where", ["training_step", "optimizer", "data"])
def test_a_training_that_fails_leaves_no_trace(where: str, tmp_path: Path) -> None:
    from lostflops.integrations.transformers_trainer import GUARDED, LostflopsCallback

    callback = LostflopsCallback(checkpoint={"keep": ()}, offload=OFFLOAD)
    made = trainer(tmp_path, [callback])
    before = state(made.model)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is gone")

    class Broken(Texts):
        def __getitem__(self, index: int) -> Any:
            return fail()

    if where == "training_step":
        made.model.model.norm.forward = fail
        before = state(made.model)
    elif where == "optimizer":
        made.create_optimizer()
        made.optimizer.step = fail
    else:
        made.train_dataset = Broken()
    with pytest.raises(OSError, match="the disk is gone"):
        made.train()
    assert state(made.model) == before
    assert not {"compute_loss", "evaluate", *GUARDED} & set(vars(made))
    assert "backward" not in vars(made.accelerator)
    assert report_of(tmp_path)["failed"] == "OSError: the disk is gone"


def test_a_refused_remedy_stops_before_the_first_step(tmp_path: Path) -> None:
    from lostflops.integrations.transformers_trainer import LostflopsCallback

    with pytest.raises(Refused, match="no remedy"):
        LostflopsCallback(ofload=True)
    made = trainer(tmp_path, [LostflopsCallback(checkpoint=True)], gradient_checkpointing=True)
    before = state(made.model)
    with pytest.raises(Refused):
        made.train()
    assert {k: v for k, v in state(made.model).items() if "hooks" not in k} == {
        k: v for k, v in before.items() if "hooks" not in k
    }
    assert made.state.global_step == 0


def test_a_trainers_loader_is_tuned_when_it_is_made(tmp_path: Path) -> None:
    from lostflops.integrations.transformers_trainer import LostflopsCallback

    wanted = {"step_seconds": 5.0, "seconds": 0.5}
    callback = LostflopsCallback(tune_loader=wanted)
    made = trainer(tmp_path, [callback])
    assert made.args.dataloader_num_workers == 0 and made.args.dataloader_pin_memory is False
    made.train()
    assert report_of(tmp_path)["remedies"]["tune_loader"]["report"]["arguments"]["num_workers"] == 0
    late = trainer(tmp_path, [])
    late.add_callback(LostflopsCallback(tune_loader=wanted))
    with pytest.raises(Refused, match="has made its data loader already"):
        late.train()
    with pytest.raises(Refused, match="how long a step takes"):
        trainer(tmp_path, [LostflopsCallback(tune_loader=True)])


class Named(Texts):
    """With a column that the model does not take, and no collator could make a tensor of."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {"title": object()}


def test_columns_that_a_trainer_drops_are_dropped_while_its_loader_is_tuned(tmp_path: Path) -> None:
    from lostflops.integrations.transformers_trainer import LostflopsCallback

    callback = LostflopsCallback(tune_loader={"step_seconds": 5.0, "seconds": 0.5})
    made = trainer(tmp_path, [callback], Named())
    made.train()
    tuned = report_of(tmp_path)["remedies"]["tune_loader"]["report"]
    assert tuned["arguments"]["num_workers"] == 0 and made.state.global_step == STEPS


# --- Lightning ---


def lightning_module(fails_at: int = -1) -> Any:
    lightning = pytest.importorskip("pytorch_lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_models.llama(layers=2)
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Any:
            if number == fails_at:
                raise OSError("the disk is gone")
            loss = self.model(**batch).loss
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Module()


def fit(folder: Path, module: Any, callbacks: list[Any], **more: Any) -> Any:
    import pytorch_lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    made = pytorch_lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, default_root_dir=str(folder), logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        accumulate_grad_batches=2, callbacks=callbacks, **more,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2)
    validation = torch.utils.data.DataLoader(torch.utils.data.Subset(Texts(), range(4)), batch_size=2)
    made.fit(module, loader, validation)
    assert made.fit_loop._data_source.instance is loader
    return made


@pytest.mark.filterwarnings("ignore")
def test_lightning_gives_the_same_losses_and_the_module_is_left_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    from lostflops.integrations.lightning import LostflopsCallback

    plain = lightning_module()
    fit(tmp_path / "plain", plain, [])
    module = lightning_module()
    before = state(module)
    callback = LostflopsCallback(
        output=tmp_path / "with", checkpoint={"keep": ()}, offload=OFFLOAD,
        tune_loader={"step_seconds": 5.0, "seconds": 0.5},
    )  # fmt: skip
    fit(tmp_path / "with", module, [callback], val_check_interval=6)
    assert module.losses == plain.losses and len(plain.losses) == 2 * STEPS
    means = [(a + b) / 2 for a, b in zip(module.losses[::2], module.losses[1::2], strict=True)]
    assert losses_in(tmp_path / "with") == pytest.approx(means, rel=1e-6)
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    assert state(module) == before
    report = report_of(tmp_path / "with")
    assert report["framework"] == "pytorch-lightning" and report["framework_version"]
    assert report["steps"]["steps"] == STEPS and report["failed"] is None
    assert list(report["remedies"]) == ["checkpoint", "offload", "tune_loader"]
    steps = [line for line in log_of(tmp_path / "with") if "step" in line]
    assert [line["micro_steps"] for line in steps] == [2] * STEPS
    assert [line["tokens"] for line in steps] == [48] * STEPS
    assert all(line["forward"] > 0 and line["backward"] > 0 and line["optimizer"] > 0 for line in steps)
    assert [bool(line["evaluation"]) for line in steps] == [False, False, False, True]


@pytest.mark.filterwarnings("ignore")
def test_the_losses_of_lightning_are_read_from_outside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lostflops record` wraps what runs a batch: a step of two batches has the mean of their losses."""
    automatic = pytest.importorskip("pytorch_lightning.loops.optimization.automatic")
    told: list[float] = []
    clock = SimpleNamespace(on=True, step=0, parts=lambda losses: told.append(sum(losses)))
    monkeypatch.setattr(hooks, "CLOCK", clock)
    loop = automatic._AutomaticOptimization
    monkeypatch.setattr(loop, "run", loop.run)  # put back afterwards
    hooks.lightning(automatic)
    module = lightning_module()

    def steps(*args: Any, inner: Any = loop._optimizer_step) -> None:
        inner(*args)
        clock.step += 1

    monkeypatch.setattr(loop, "_optimizer_step", steps)
    fit(tmp_path, module, [])
    means = [(a + b) / 2 for a, b in zip(module.losses[::2], module.losses[1::2], strict=True)]
    assert [float(loss) for loss in told] == pytest.approx(means, rel=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_training_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    from lostflops.integrations.lightning import LostflopsCallback

    module = lightning_module(fails_at=3)
    before = state(module)
    with pytest.raises(OSError, match="the disk is gone"):
        fit(tmp_path, module, [LostflopsCallback(tmp_path, checkpoint={"keep": ()}, offload=OFFLOAD)])
    assert state(module) == before
    report = report_of(tmp_path)
    assert report["failed"] == "OSError: the disk is gone" and report["steps"]["steps"] == 1


# --- Accelerate ---


def accelerated(folder: Path | None, fails_at: int = -1, **given: Any) -> tuple[list[float], Any, Any]:
    accelerate = pytest.importorskip("accelerate")
    from lostflops.integrations.accelerate import lostflops_accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = tiny_models.llama(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    before, found = (state(model), set(vars(accelerator)), set(vars(optimizer))), []

    def loop() -> None:
        for n, batch in zip(range(2 * STEPS), loader, strict=False):
            if n == fails_at:
                raise OSError("the disk is gone")
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            if n == 5:
                model.eval()
                with torch.no_grad():
                    model(**batch)
                model.train()

    training = None
    try:
        if folder is None:
            loop()
        else:
            with lostflops_accelerate(accelerator, model, output=folder, **given) as training:
                loop()
    finally:
        assert (state(model), set(vars(accelerator)), set(vars(optimizer))) == before
    return found, model, training


def test_accelerate_gives_the_same_losses_and_is_left_as_it_was(tmp_path: Path) -> None:
    plain, other, _ = accelerated(None)
    found, model, training = accelerated(tmp_path, checkpoint={"keep": ()}, offload=OFFLOAD)
    assert found == plain and len(plain) == 2 * STEPS
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert json.loads(json.dumps(training.report)) == report_of(tmp_path)
    means = [(a + b) / 2 for a, b in zip(found[::2], found[1::2], strict=True)]
    assert losses_in(tmp_path) == pytest.approx(means, rel=1e-6)
    steps = [line for line in log_of(tmp_path) if "step" in line]
    assert [line["micro_steps"] for line in steps] == [2] * STEPS
    assert [line["tokens"] for line in steps] == [48] * STEPS
    assert all(line["forward"] > 0 and line["backward"] > 0 and line["optimizer"] > 0 for line in steps)
    assert [bool(line["evaluation"]) for line in steps] == [False, False, False, True]


def test_an_accelerated_training_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        accelerated(tmp_path, fails_at=5, checkpoint={"keep": ()}, offload=OFFLOAD)
    assert report_of(tmp_path)["failed"] == "OSError: the disk is gone"
    assert log_of(tmp_path)[-1]["steps"] == 2


def test_accelerate_is_refused_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"before accelerator\.prepare"):
        accelerated(tmp_path, tune_loader=True)
    accelerate = pytest.importorskip("accelerate")
    from lostflops.integrations.accelerate import lostflops_accelerate

    empty = accelerate.Accelerator(cpu=True)
    empty._optimizers.clear()
    with pytest.raises(Refused, match="no optimizer has been prepared"), lostflops_accelerate(empty, None):
        pass


# --- without the frameworks ---


@pytest.mark.parametrize(
    ("module", "package", "blocked"),
    [("transformers_trainer", "transformers", ("transformers",)),
     ("accelerate", "accelerate", ("accelerate",)),
     ("lightning", "lightning", ("pytorch_lightning", "lightning"))],
)  # fmt: skip
def test_without_its_framework_a_module_says_what_to_install(
    module: str, package: str, blocked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in blocked:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"lostflops.integrations.{module}", raising=False)
    with pytest.raises(ImportError, match=f"pip install {package}"):
        __import__(f"lostflops.integrations.{module}")
    sys.modules.pop(f"lostflops.integrations.{module}", None)


def test_the_package_itself_needs_no_framework() -> None:
    code = "import sys, lostflops.integrations; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_report_survives_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "lostflops").mkdir()
    training = TrainingRun("accelerate", tmp_path, {})
    training.begin(torch.nn.Linear(2, 2))
    (tmp_path / "lostflops" / "report-00000.jsonl").mkdir()
    report = training.end()
    assert report is not None and training.end() is None


# --- documentation ---


@pytest.mark.parametrize("page", ["optimize/integrations.md", "optimize/data-loading.md"])
def test_the_examples_of_the_documentation_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example.replace("seconds=10", "seconds=2"), page, "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    if page == "optimize/data-loading.md":
        assert "DataLoader(..., num_workers=" in said
    else:
        assert (
            re.search(r"^[0-9.e-]+ 8 modules recomputed$", said, re.MULTILINE)
            and report_of(tmp_path / "runs" / "a")["steps"]["steps"] == 4
        )
