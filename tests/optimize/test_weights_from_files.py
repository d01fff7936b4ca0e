"""Weights that come from .safetensors files: the same tokens, little memory, and errors in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize.amounts import bytes_of
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.device.written_pages import watching
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights.safetensors_files import INDEX, WeightFiles
from lostflops.optimize.weights.sources import FileSources
from simulated_devices import LazyDevice, RaceDevice
from test_weights import generated

torch.set_num_threads(1)


def model_of(kind: str) -> Any:
    if kind == "mixtral":
        from transformers import MixtralConfig, MixtralForCausalLM

        torch.manual_seed(0)
        sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
        return MixtralForCausalLM(MixtralConfig(**sizes, **heads)).eval()
    return tiny_models.llama(6, use_cache=True, tie_word_embeddings=kind == "tied").eval()


def saved(model: nn.Module, folder: Path, shards: int = 1, dtype: torch.dtype | None = None) -> Path:
    """As `save_pretrained` does: tied weights once, an index where there are several files."""
    folder.mkdir(exist_ok=True)
    tensors = {name: each.detach().to(dtype).contiguous() for name, each in model.named_parameters()}
    tensors |= {
        name: model.state_dict()[name] for name, _ in model.named_buffers() if name in model.state_dict()
    }
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    where = {name: f"model-{1 + n % shards:05}-of-{shards:05}.safetensors" for n, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def empty(kind: str) -> Any:
    with optimize.without_weights():
        return model_of(kind)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("host", [None, "some", "1 GiB"])
@pytest.mark.parametrize("kind", ["tied", "untied", "mixtral"])
def test_what_is_generated_is_the_same_to_the_bit(kind: str, host: Any, shards: int, tmp_path: Path) -> None:
    if host == "some":
        host = "300 KiB" if kind == "mixtral" else "200 KiB"
    model = model_of(kind)
    expected = generated(model)
    files = saved(model, tmp_path / "files", shards)
    fresh = empty(kind)
    assert all(parameter.is_meta for parameter in fresh.parameters())
    with optimize.stream_weights(fresh, device=ThreadedDevice(), files=files, host=host) as streamed:
        assert torch.equal(generated(fresh), expected)
        assert torch.equal(generated(fresh), expected)
        state = fresh.state_dict()
        assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
        report = streamed.report()
    if host == "1 GiB":
        assert (report.layers_in_files, report.read_bytes) == (0, 0)
    else:
        assert report.layers_in_files > 0 and report.read_bytes > 0
        assert f"{report.layers_in_files} layers" in str(report)
    if host in ("200 KiB", "300 KiB"):
        assert 0 < report.pinned_held_bytes <= bytes_of(host)
    assert all(parameter.is_meta for parameter in fresh.parameters()), "as it was"
    assert (fresh.lm_head.weight is fresh.model.embed_tokens.weight) == (kind == "tied")


def test_dtypes_are_those_of_the_files_and_buffers_keep_their_own(tmp_path: Path) -> None:
    model = model_of("tied")
    files = saved(model, tmp_path / "files", 2, torch.bfloat16)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model.to(torch.bfloat16)
    model.model.rotary_emb.inv_freq = frequencies
    expected = generated(model)
    fresh = empty("tied")
    with optimize.stream_weights(fresh, device=LazyDevice(), files=files):
        assert {each.dtype for each in fresh.parameters()} == {torch.bfloat16}
        assert torch.equal(fresh.model.rotary_emb.inv_freq, frequencies)
        assert torch.equal(generated(fresh), expected)


def test_memory_is_that_of_the_buffers_and_the_slots_not_that_of_the_model(tmp_path: Path) -> None:
    """384 MiB of weights, 8 MiB a layer."""
    program = f"""
        import torch
        from pathlib import Path
        from lostflops import optimize
        from safetensors.torch import save_file

        folder = Path({str(tmp_path)!r})
        torch.set_num_threads(1)
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 2048, bias=False) for _ in range(48))
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)[:, :1024].tanh()
                return x
        for part in range(4):
            names = [f"layers.{{12 * part + n}}.weight" for n in range(12)]
            weights = {{name: torch.full((2048, 1024), 0.01) for name in names}}
            save_file(weights, folder / f"{{part}}.safetensors")
        del weights
        def status(name):
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith(name))) / 1024
        Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        with optimize.without_weights():
            model = Model()
        with optimize.stream_weights(model, device=optimize.ThreadedDevice(), files=folder) as streamed:
            with torch.no_grad():
                for _ in range(2):
                    model(torch.ones(2, 1024))
            read = streamed.report().read_bytes
        print(status("VmHWM") - before, read / 2**20)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    most, read = map(float, ran.stdout.split())
    assert read >= 2 * 384 - 8
    assert most < 100, f"{most} MiB more than before; 2 slots and 3 buffers are 40 MiB"


def test_what_is_written_into_a_weight_counts(tmp_path: Path) -> None:
    """Between passes: in place, through `.data`, one element through NumPy, and another memory."""
    model = model_of("untied")
    files = saved(model, tmp_path / "files")
    fresh = empty("untied")
    with optimize.stream_weights(fresh, device=ThreadedDevice(), files=files) as streamed, torch.no_grad():
        assert torch.equal(generated(fresh), generated(model))
        for each in (model, fresh):
            each.model.layers[2].mlp.up_proj.weight.mul_(-1)
        assert torch.equal(generated(fresh), generated(model))
        for each in (model, fresh):
            each.model.layers[4].mlp.up_proj.weight.data.mul_(-2)
        if watching() is None:  # an older kernel, or a container that forbids it
            streamed.refresh()
        assert torch.equal(generated(fresh), generated(model))
        for turn in range(4):
            for each in (model, fresh):
                weight = each.model.layers[3 - turn // 2].mlp.down_proj.weight.data
                weight.numpy()[turn, 3] = 4.0
            if watching() is None:
                streamed.refresh()
            assert torch.equal(generated(fresh), generated(model)), turn
        assert torch.equal(generated(fresh), generated(model))
        for each in (model, fresh):
            weight = each.model.layers[3].self_attn.q_proj.weight
            weight.data = weight.data.clone() * 3
        assert torch.equal(generated(fresh), generated(model))
        last = generated(model)
        assert torch.equal(generated(fresh), last)
    untouched = WeightFiles(files)
    stored = untouched.tensors["model.layers.2.mlp.up_proj.weight"]
    assert torch.equal(stored.file.view(stored), model_of("untied").model.layers[2].mlp.up_proj.weight)
    untouched.close()


def test_a_file_that_shrinks_under_it_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    files = saved(model_of("untied"), tmp_path / "files")
    fresh = empty("untied")
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with optimize.stream_weights(fresh, device=ThreadedDevice(), files=files):
        os.truncate(files / "model.safetensors", 90_000)
        with pytest.raises(Refused, match="has become shorter"):
            generated(fresh)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert all(parameter.is_meta for parameter in fresh.parameters())


class Odd(nn.Module):
    """Empty and scalar weights, a persistent buffer, and a layer's weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.counts = nn.Parameter(torch.arange(16), requires_grad=False)
        self.register_buffer("mean", torch.randn(16))
        self.layers[3].bias = self.layers[1].bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh() * self.scale + self.mean
        return x + self.empty.sum() + self.counts


def test_empty_scalar_integer_and_shared_weights_come_too(tmp_path: Path) -> None:
    model = Odd()
    files = saved(model, tmp_path / "files", 2)
    with optimize.without_weights():
        fresh = Odd()
    fresh.mean.zero_()  # of the files, although it has a value here? a buffer that has one keeps it
    model.mean.zero_()
    with torch.no_grad(), optimize.stream_weights(fresh, device=ThreadedDevice(), files=files):
        x = torch.randn(3, 16)
        assert torch.equal(fresh(x), model(x)) and fresh.layers[3].bias is fresh.layers[1].bias


def test_what_is_wrong_with_files_is_said(tmp_path: Path) -> None:
    def refused(files: Path, said: str, model: Any = None) -> None:
        model = model if model is not None else empty("tied")
        with pytest.raises(Refused, match=said):
            optimize.stream_weights(model, device=ThreadedDevice(), files=files)
        assert all(parameter.is_meta for parameter in model.parameters())

    good = saved(model_of("tied"), tmp_path / "good")
    whole = (good / "model.safetensors").read_bytes()

    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    refused(tmp_path / "nowhere", "there is no .safetensors file at")
    refused(file("short.safetensors", whole[:-1]), "ends in the middle")
    refused(file("tiny.safetensors", b"abc"), "is no safetensors file")
    refused(file("long.safetensors", b"\xff" * 16), "is no safetensors file")
    refused(file("text.safetensors", (2).to_bytes(8, "little") + b"[]"), "is no safetensors file")
    header = b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    refused(file("f4.safetensors", len(header).to_bytes(8, "little") + header + b"1"), "of dtype F4")
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}'
    sized = file("size.safetensors", len(header).to_bytes(8, "little") + header + b"1234")
    refused(sized, "another size than")
    refused(saved(model_of("untied"), tmp_path / "more"), "are one weight in the model, and differ")
    other = tiny_models.llama(5, use_cache=True, tie_word_embeddings=True)
    refused(saved(other, tmp_path / "fewer"), r"do not have 'model.layers.5.*' and 5 more of the model")
    refused(good, "the files have 'model.layers.5", empty_llama(5))
    refused(good, r"is \[61, 32\] in the files and \[61, 64\] in the model", empty_llama(6, hidden_size=64))
    with torch.device("meta"):
        buffers = model_of("tied")
    refused(good, r"do not have '.*inv_freq'.*of the model", buffers)
    sharded = saved(model_of("tied"), tmp_path / "sharded", 2)
    index = json.loads((sharded / INDEX).read_text())
    first = "model-00001-of-00002.safetensors"
    for change, said in (
        ({"weight_map": index["weight_map"] | {"x": "../good/model.safetensors"}}, "not a file beside it"),
        ({"weight_map": index["weight_map"] | {"x": "gone.safetensors"}}, "gone.safetensors cannot be read"),
        (
            {"weight_map": index["weight_map"] | {"x": first}},
            "does not have 'x'",
        ),
        ({"weights": {}}, "is no index of weights"),
    ):
        (sharded / INDEX).write_text(json.dumps(change))
        refused(sharded, said)
    (sharded / INDEX).unlink()
    (sharded / "again.safetensors").write_bytes((sharded / first).read_bytes())
    refused(sharded, "is in again.safetensors and in model-00001")
    with pytest.raises(Refused, match="is too small for 3 buffers"):
        optimize.stream_weights(empty("tied"), device=ThreadedDevice(), files=good, host=1000)
    with pytest.raises(Refused, match="host= is for weights in files"):
        optimize.stream_weights(model_of("tied"), device=ThreadedDevice(), host=1000)


def empty_llama(layers: int, **more: Any) -> Any:
    with optimize.without_weights():
        return tiny_models.llama(layers, use_cache=True, tie_word_embeddings=True, **more)


# Buffers


class AtOnce:
    """Reads where it is asked to, so that the detector of races sees it."""

    def submit(self, work: Any, *arguments: Any) -> Any:
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done

    def shutdown(self) -> None: ...


@pytest.mark.parametrize("forgets", [None, "_is_sent", "synchronize"])
def test_a_buffer_is_not_read_into_before_the_copy_out_of_it_is_done(forgets: Any, monkeypatch: Any) -> None:
    device = RaceDevice()
    with device:
        copies = device.new_stream()

        def read(layer: int, memory: torch.Tensor) -> int:
            memory.fill_(layer)
            return 1024

        sources: Any = FileSources(
            device,
            [1024] * 7,
            [None] * 7,
            read,
            lambda _: 0,
            2,
            thread=AtOnce(),  # type: ignore[arg-type]
        )
        if forgets == "_is_sent":
            sources._is_sent = lambda buffer: True
        if forgets == "synchronize":
            monkeypatch.setattr(device, "synchronize", lambda event: None)
        for turn in range(21):
            slot = device.allocate(1024)
            device.wait(copies, device.record(device.current_stream()))
            device.copy(slot, sources.get(turn % 7), copies)
            sources.sent(turn % 7, device.record(copies))
            sources.ask([(turn + 1) % 7, (turn + 2) % 7])
            device.wait(device.current_stream(), device.record(copies))
            assert int(slot[0]) == turn % 7
    assert bool(device.races) == (forgets is not None)


def test_reading_ahead_is_not_waited_for_and_counted_once() -> None:
    device, calls = ThreadedDevice(), list[int]()

    def read(layer: int, memory: torch.Tensor) -> int:
        calls.append(layer)
        memory.fill_(layer)
        return memory.numel()

    versions = [0] * 4
    sources = FileSources(
        device, [8, 16, 8, 8], [None, None, torch.ones(8), None], read, versions.__getitem__, 3
    )
    assert [len(each.memory) for each in sources.buffers] == [16] * 3
    assert sources.get(0)[0] == 0 and sources.get(2)[0] == 1
    sources.ask([1, 2, 3])
    assert sources.get(1).tolist() == [1] * 16 and sources.get(3)[0] == 3 and sources.get(0)[0] == 0
    assert calls == [0, 1, 3] and sources.read_bytes == 32
    versions[1] += 1
    assert sources.get(1)[0] == 1 and calls == [0, 1, 3, 1]
    sources.ask([3, 0])
    sources.close()
    assert sources.buffers == []
