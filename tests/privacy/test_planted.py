"""Everything of `planted.PLANTED` is gone, in whatever form it lies, and what the ledger needs is not."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import PLANTED as FIRST
from planted_anew import ANEW
from planted_in_jobs import IN_JOBS

import lostflops
import nsys_exports
from kineto_files import head, one_step, operator, span, trace, written
from lostflops import cli
from lostflops.privacy import cleaner
from lostflops.privacy.cleaner import Cleaner
from lostflops.privacy.secrets import without_secrets
from lostflops.privacy.text import pieces
from lostflops.report.document import document

ROOT = Path(__file__).parents[2]
PLANTED = (*FIRST, *ANEW, *IN_JOBS)
KINDS = [kind for kind, _, _ in PLANTED]


OURS = re.compile(r"node-[0-9a-f]{4}-\d+")  # a name that scrubbing gives, with a tag drawn by chance


class Rows:
    """All rows of letters in a text, so that hundreds of secrets can be looked for in a long one."""

    def __init__(self, text: str) -> None:
        self.text = OURS.sub("node", text)
        self.fives = {self.text[at : at + 5] for at in range(len(self.text) - 4)}

    def hold(self, piece: str) -> bool:
        return piece in self.fives if len(piece) == 5 else piece in self.text


def left(rows: Rows, secret: str, around: str) -> str:
    """Five letters in a row of a secret that are still in the text and were not beside it already."""
    outside = around.replace(secret, "\0")
    pieces = (secret[at : at + 5] for at in range(max(1, len(secret) - 4)))
    return next((piece for piece in pieces if rows.hold(piece) and piece not in outside), "")


def require_gone(rows: Rows, kind: str, around: str, secrets: tuple[str, ...]) -> None:
    for secret in secrets:
        assert not (piece := left(rows, secret, around)), (
            f"{kind}: '{piece}' of '{secret}' in {rows.text[:600]}"
        )


@pytest.mark.parametrize(("kind", "text", "secrets"), PLANTED, ids=KINDS)
def test_what_is_planted_is_gone_and_stays_gone(kind: str, text: str, secrets: tuple[str, ...]) -> None:
    # As a cell holds it, in a JSON string, in JSON in a JSON string, and behind an escape.
    for whole in (
        text,
        json.dumps({"a": text}),
        json.dumps({"a": json.dumps({"b": text})}),
        json.dumps("x\n" + text),
    ):
        clean = Cleaner().text(whole.encode()).decode()
        require_gone(Rows(clean), kind, text, secrets)
        if whole != text:
            json.loads(clean)
        again = Cleaner()
        assert again.text(clean.encode()).decode() == clean
        assert not {k: dict(v) for k, v in again.found.items() if v}, "what is clean is found again"


def test_words_of_a_command_are_kept_without_their_secrets() -> None:
    for kind, text, secrets in PLANTED[: KINDS.index("URL with a password")]:
        if "\n" not in text and kind not in ("SSH public key", "cookie"):  # blanks part what is one word
            require_gone(
                Rows(" ".join(without_secrets(text.split(" ")))),
                kind,
                text,
                tuple(s for s in secrets if " " not in s),
            )


NAMES = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>, x>",
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "triton_red_fused_embedding_dense_backward_native_layer_norm_7",
    "fused_token_embedding",
    "aten::_pin_memory",
    "cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<int, at::cuda::cub::OpaqueType<8>>::x>",
    "Memcpy HtoD (Pageable -> Device)",
    "ProfilerStep#7",
    "Optimizer.step#AdamW.step",
    "next token prediction_head",
    "forward pass: layer 3",
    "flash_attn::_flash_attn_forward",
    "MHA key: 12, value: 7",
    "module.net.0.weight",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "model.layers.3.mlp",
    "torch.nn.io",
    "batch_key=7",
    "torchvision.io.read_image",
    "nccl:all_reduce",
    "gloo:send",
    "Torch-Compiled Region: 0/0",
    "sort key=lambda",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>(Params)",
    "step 12:30:45",
    "autograd::engine::evaluate_function: MmBackward0",
    "cudaLaunchKernelExC_v11060",
    "user_annotation",
    "p2p send/recv",
    "/layer1/attention",
    "(0,1)/(2,3)",
    "a/b/c",
    "host to device: 12:34",
    "SKIP_AC0123",
    "num_tokens=128",
    "x86_64-linux-gnu/libcudnn_9.10.2.21",
    "<token>(int, float)",
    "python -u train.py",
    "//layer1/attention",
    "void f<$_0>(a-b)",
    "('token', 'type_ids')",
    "serial: true",
    "Tensor::~Tensor",
    "add@plt: x",
    "partition_id=3",
    "2026-11-23-06-14-12",
    "forward pass=2",
    "backward pass: 12 of 20",
    "the token is None",
    "password is required",
    "sort key abc123",
    "cache key 12ab",
    "on device 3",
    "the host is ready",
    "nvidia-cudnn-cu12==9.1.0.70",
    "hf_transfer==0.1.9",
    "machine learning default stream",
    "pw=3",
    "PIN memory, pin: 3",
    "echo: 7",
    "mongo::collection -p",
    "zip -r x",
    "login shell",
    "kernel on node a",
    "set token 3",
    "secret_sauce",
    "aten::_scaled_dot_product_flash_attention_backward/Base64Encoder",
    "autogradEngineEvaluateFunctionConvolutionBackward0",
    "50%2 of 100%ab",
    "%s%d%20s",
    "ssh keys are read",
    "fw_backward_kernel_0123456789",
    "hash=0123456789abcdef&x=1",
    "[cuda:0] [rank0:1] [stream 7:1234]",
    "PARTITION_KEY=layer_3_norm_weight",
    "self.tensors.TransformerEncoderLayer0x",
    "display=none address=3 uid=0",
    "x/homepage/users of x",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel(at::Tensor&)>",
)


def test_names_of_work_stay_as_they_are() -> None:
    for name in NAMES:
        for text in (name, json.dumps({"name": name, "ts": 1.5, "args": {"Sequence number": 3, "token": 7}})):
            assert Cleaner().text(text.encode()).decode() == text


PIECES = st.one_of(
    st.sampled_from([text for _, text, _ in PLANTED]),
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            *[",", ":", '"', "\n", "'", "=", "\\", "{", "}", "[", "]", "1", '\\"'],
            '", "',
            '": "',
            ',"',
            ', "',
            '"}, {"',
            "\\n",
            " ",
        ]
    ),
    st.sampled_from(["--host ", "host", "key", "token: ", '"name": "', '"value": "', "USER=", "version "]),
)


@given(
    parts=st.lists(PIECES, max_size=14),
    form=st.sampled_from(
        [str, json.dumps, lambda t: json.dumps({"ts": 1.5, "name": t, "args": [t]}, indent=1)]
    ),
)
@settings(max_examples=150, deadline=None)
def test_what_is_not_looked_into_holds_nothing(parts: list[str], form: Any) -> None:
    text = str(form("".join(parts))).encode()
    text = b'{"ts": 12.5, "dur": 3, "name": "aten::add"},\n' * 9 + text
    quick, slow = Cleaner(), Cleaner()
    slow._tag = quick._tag
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaner, "SMALL", 0)
        for _ in range(2):  # once more with all names known
            assert quick.text(text) == slow.whole(text)
    assert quick.found == slow.found


@pytest.mark.parametrize(
    "name", ["hta/df_index_resolver__df_index_resolver", "tracelens/mi300__resnet_act_checkpoint"]
)
def test_a_real_trace_becomes_the_same_bytes_the_quick_and_the_slow_way(name: str) -> None:
    file = ROOT.parent / "shared" / "traces" / "kineto" / f"{name}.json.gz"
    if not file.exists():
        pytest.skip("the shared traces are not here")
    piece = next(pieces(file))[: 1 << 20]
    quick, slow = Cleaner(), Cleaner()
    slow._tag = quick._tag
    assert quick.text(piece) == slow.whole(piece)
    assert quick.found == slow.found


def test_a_machine_that_is_named_later_is_taken_out_before_too() -> None:
    lines = [f'{{"name": "on rackbox77, {n}", "ts": {n}.5}},' for n in range(99)]
    clean = Cleaner().text("\n".join([*lines, "MASTER_ADDR=rackbox77"]).encode())
    assert clean.count(b"rackbox77") == 0


def test_a_version_in_another_field_makes_no_version_of_an_address() -> None:
    clean = Cleaner().text(b'{"version": "1.2.3.4", "master": "10.20.30.40",\n"peer": "10.20.30.41"}')
    assert clean == b'{"version": "1.2.3.4", "master": "address-0",\n"peer": "address-1"}'


def events() -> list[Any]:
    found: list[Any] = [*one_step()]
    for number, (_, text, _) in enumerate(PLANTED):
        found.append(span("user_annotation", text, 1000 + number / 10, 0.05))
        found.append(operator("aten::add", 1040 + number / 100, 0.005, more={"Call stack": text}))
    return found


def fields() -> dict[str, Any]:
    return {f"note {n}": text for n, (_, text, _) in enumerate(PLANTED)} | {
        "password": "correct horse Xy",
        "host_name": "rackbox77",
        "user": "alicesmith",
        "job_name": "hush-hush",
    }


def all_gone(text: str) -> None:
    rows = Rows(text)
    for kind, around, secrets in PLANTED:
        require_gone(rows, kind, around + NOT_PRIVATE, secrets)
    assert "correct horse" not in text


# What the forms themselves say, some of which has five letters of a secret too.
NOT_PRIVATE = (
    " correlation range_gpu_projection traceEvents users train.py session step secret password token example"
)


def hashes(said: Any) -> Any:
    """What a page says, in numbers."""
    return (
        said["ledger"],
        said["steps"],
        [(f["name"], f["ns_per_step"], f["cost_per_step"]) for f in said["findings"]],
    )


@pytest.mark.parametrize("form", ["rank-0.json", "rank-0.json.gz", "a.sqlite", "a_pqtdir", "a_arwdir", "run"])
def test_no_form_of_a_recording_keeps_what_is_planted(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    given, clean = tmp_path / form, tmp_path / "clean" / form
    clean.parent.mkdir()
    texts = [text for _, text, _ in PLANTED]
    tables: Any = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [nsys_exports.kernel(110, 150), nsys_exports.kernel(160, 175)],
        "NVTX_EVENTS": [
            nsys_exports.push(100 + n, 101 + n, text, jsonText=json.dumps({"x": text}))
            for n, text in enumerate(texts)
        ],
        "StringIds": [{"id": 100 + n, "value": text} for n, text in enumerate(texts)],
        "PROCESSES": [{"globalPid": nsys_exports.process(7), "pid": 7, "name": text} for text in texts],
    }
    if form.startswith("rank-0"):
        written(given, trace(events(), head(0, 1, **fields()), {"INFO": texts}))
    elif form == "a.sqlite":
        nsys_exports.sqlite(given, tables)
    elif form.endswith("dir"):
        nsys_exports.folder(given, tables, arrow=None if form == "a_pqtdir" else "stream")
    else:
        (given / "node-0000").mkdir(parents=True)
        written(
            given / "node-0000" / "window-00000-a0-w000.pt.trace.json.gz",
            trace(events(), head(0, 1, **fields())),
        )
        (given / "recording.jsonl").write_text(json.dumps({"kind": "start", "command": texts}) + "\n")
        (given / "lostflops.log").write_text("\n".join(texts))
        (given / "job.csv").write_text("text\n" + "\n".join(json.dumps(text) for text in texts))
    before = hashes(json.loads(document(lostflops.why(given))))
    assert cli.main(["scrub", str(given), "--output", str(clean)]) == 0
    files = [clean] if clean.is_file() else [p for p in clean.rglob("*") if p.is_file()]
    for file in files:
        data = file.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if form.endswith("dir"):
            import polars as pl

            read = pl.read_parquet if form == "a_pqtdir" else pl.read_ipc_stream
            data = "\n".join(str(row) for row in read(file).rows()).encode()
        all_gone(data.decode(errors="replace"))
    page = lostflops.why(clean)
    said = json.loads(document(page))
    assert hashes(said) == before
    for source in said["run"]["sources"]:  # five digits of a digest may be those of a planted number
        assert re.fullmatch("[0-9a-f]{32}", source.pop("identity"))
    all_gone(str(page) + json.dumps(said, ensure_ascii=False))
    capsys.readouterr()
    assert cli.main(["inspect", str(clean)]) == 0
    assert capsys.readouterr().out == "found nothing private\n"
