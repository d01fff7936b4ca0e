"""What is taken out of a recording before it is shared, and that nothing else is."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sqlite3
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsys_exports
from kineto_files import head, one_step, operator, span, trace, written
from lostflops import cli
from lostflops.errors import BadOption, LostflopsError, NotATrace, OutputExists
from lostflops.ingest import job
from lostflops.ingest.private import Settings
from lostflops.privacy import recording, secrets, text
from lostflops.privacy.apart import Apart
from lostflops.privacy.cleaner import Cleaner
from lostflops.report.document import document
from lostflops.report.first_page.page import page
from lostflops.session import Session
from recorded import TRAIN, record

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "traces"

TOKEN = "hf_AbCdEfGhIjKlMnOp"
# Everything that is planted, in pieces that none may be left of.
PLANTED = [
    TOKEN,
    "s3cr3t-pw",
    "gpu-node17",
    "alice",
    "hush-hush",
    "10.20.30.40",
    "bob@corp.example",
    "mlflow.corp",
]


def cleaned(text: str, **options: Any) -> str:
    return Cleaner(**options).text(text.encode()).decode()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('"/home/alice/my job/train.py(12): step"', '"/folder-0/train.py(12): step"'),
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/x.py", "torch/nn/x.py"),
        ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py"),
        ("PATH=/usr/bin:/home/alice/bin", "PATH=/folder-0:/folder-1"),
        (r"failed\n/home/alice/x.so.1", r"failed\n/folder-0/x.so.1"),
        ("-I/home/alice/include file:///home/alice/a.py", "-I/folder-0 file:///folder-1/a.py"),
        ("../../home/alice/train.py", "../folder-0/train.py"),
        (r"C:\\Users\\alice\\train.py", "/folder-0/train.py"),
        ("/layer1/attention", "/layer1/attention"),
        ("at::native::add / 2 and/or 3/4", "at::native::add / 2 and/or 3/4"),
        (f"--x {TOKEN}", "--x <removed>"),
        ("https://me:s3cr3t-pw@mlflow.corp:80/alice", "https://<removed>@server-0:80"),
        ("tcp://10.1.2.3:29500 and 10.1.2.3", "tcp://server-0:29500 and server-0"),
        ("version 535.104.5.1, cudnn_version: 9.1.0.70", "version 535.104.5.1, cudnn_version: 9.1.0.70"),
        ("mac 0c:42:a1:00:be:ef guid 0c42:a103:0000:beef", "mac address-0 guid address-1"),
        ("12:34:56 ts 1.2.3 127.0.0.1", "12:34:56 ts 1.2.3 127.0.0.1"),
        ("mail bob@corp.example, GLIBC@2.2.5", "mail mail-0, GLIBC@2.2.5"),
        ("GPU-8f6d0b32-1c1d-2f45-9fae-d6f5e3a4c111", "GPU-0"),
        ('API_KEY="s3cr3t-pw" password: hunter22', 'API_KEY="<removed>" password: <removed>'),
        ("--hf-token s3cr3t-pw --tokenizer gpt2 --key 3", "--hf-token <removed> --tokenizer gpt2 --key 3"),
        ("next_token go pad_token: x a_token=s3cr3t-pw-ok", "next_token go pad_token: x a_token=<removed>"),
        (rf"\n{TOKEN}\tbob@a.org\u00fc10.2.3.4\\{TOKEN}", r"\n<removed>\tmail-1\u00fcaddress-0\\<removed>"),
        (r"api_key=\ns3cr3t-pw password: \u00fcs3cr3t-pw", r"api_key=\n<removed> password: \u00fc<removed>"),
        (r"{\"api_key\": \"s3cr3t-pw\"} secret=\\s3cr3t", r"{\"api_key\": \"<removed>\"} secret=\\<removed>"),
        (r"api_key=\s3cr3t-pw api_key=\/s3cr3t-pw", r"api_key=\<removed> api_key=\/<removed>"),
        ("mailto:bob@a.org;to:10.2.3.4 mac:0c:42:a1:00:be:ef", "mailto:mail-2;to:address-0 mac:address-1"),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer <removed>"),
        ("num_tokens=128 max_token=17 tokenizer key=3", "num_tokens=128 max_token=17 tokenizer key=3"),
        ('{"tw_user": "x", "mast_job_name": "y"}', '{"tw_user": "user-0", "mast_job_name": "<removed>"}'),
    ],
)  # fmt: skip
def test_text_is_cleaned_and_what_only_looks_private_stays(text: str, clean: str) -> None:
    assert cleaned(text) == clean
    assert cleaned(clean) == clean, "cleaning twice changes it"


PIECES = st.sampled_from(
    [
        *PLANTED,
        "/home/alice/x y/",
        "/a/b.py(3): f",
        "\\",
        '"',
        "\n",
        "//",
        "api_key=",
        "host",
        "://",
        "\u00fc",
        "--token ",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=6).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "host_name", "user"]), inner)
    ),
    max_leaves=8,
)


@given(value=VALUES, ascii_only=st.booleans())
@settings(max_examples=150, deadline=None)
def test_json_stays_json_and_every_number_stays(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert wordless(json.loads(cleaned(text))) == wordless(json.loads(text))


def test_no_text_takes_long() -> None:
    for hard in (
        "a" * (1 << 20) + "@b.cd",
        '"/' * (1 << 17) + "(1): ",
        "/a" * (1 << 19),
        "1.2.3." * (1 << 17),
    ):
        began = time.process_time()
        cleaned(hard)
        assert time.process_time() - began < 5


def test_the_same_machine_has_the_same_name_everywhere_and_others_have_others() -> None:
    cleaner = Cleaner(node=lambda name: f"node-{name[-1]}")
    cleaner.learn(b'{"host_name": "gpu-a1.corp"} {"hostname":"gpu-a2"}')
    text = cleaner.text(b'"host_name": "gpu-a1.corp", gpu-a1_77.json on gpu-a2, not xgpu-a1 nor gpu-a11')
    assert text == b'"host_name": "node-p", node-p_77.json on node-2, not xgpu-a1 nor gpu-a11'
    assert cleaned("a Project X and projectx", also=["Project X"]) == "a <removed> and projectx"
    assert cleaned("/home/a/x.py 10.2.3.4", keep=["paths"]) == "/home/a/x.py address-0"


def test_data_whose_length_matters_keeps_it() -> None:
    data = b"\x00\x01" + TOKEN.encode() + b"\x00\x02"
    assert Cleaner().blob(data) == b"\x00\x01" + b"x" * len(TOKEN) + b"\x00\x02"


def test_random_words_are_secrets_and_names_are_none() -> None:
    assert secrets.random("Zk3vQ9xTb7LmR2sWc8YhJ5nPd1FgA6uE")
    for name in ("meta-llama-Llama-3-70B-Instruct-hf-2024", "a" * 40, "0123456789abcdef" * 3, "train.py"):
        assert not secrets.random(name)
    words = ["--wandb-key", "abc", "--monkey=3", "--tokens", "7", "--tokenizer=x"]
    assert secrets.without_secrets(words) == ["--wandb-key", "<removed>", *words[2:]]


def private_trace(rank: int = 0) -> bytes:
    before = head(rank, 1, host_name="gpu-node17", username="alice", traceName="/home/alice/hush-hush/t.json")
    events = [
        *one_step(),
        span("python_function", "/home/alice/hush-hush/train.py(12): step", 1000, 90),
        span("python_function", "/o/lib/python3.11/site-packages/torch/utils/data/x.py(7): next", 1020, 9),
        operator("aten::add", 1040, 3, more={"Call stack": f"/scratch/alice/a.py(1): f; token={TOKEN}"}),
        span("user_annotation", 'said "10.20.30.40" to bob@corp.example', 1050, 2),
    ]  # fmt: skip
    after = {"INFO": ["gpu-node17: --password s3cr3t-pw", "https://u:s3cr3t-pw@mlflow.corp/alice"]}
    return trace(events, before, after)


def left(path: Path) -> set[str]:
    """What of the planted is left in a file, byte by byte."""
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return {word for word in PLANTED if word.encode() in data}


def numbers(path: Path) -> Any:
    """All that `why` says, without what names the files, and all rows of all tables without their names."""
    opened = job.open(path)
    said = json.loads(document(page(opened, Session(opened))))
    for source in said["run"].pop("sources"):
        assert source["bytes"] > 0
    tables = {name: opened.table(name) for name in opened.manifest.tables}
    names = ("name", "group", "host")
    rows = {n: t.select(pl.exclude(names)).collect().to_dicts() for n, t in tables.items() if t is not None}
    return said, rows


def wordless(value: Any) -> Any:
    """The same without its texts: what was planted in names is gone from them."""
    if isinstance(value, dict):
        return {key: wordless(inner) for key, inner in value.items()}
    return (
        [wordless(inner) for inner in value]
        if isinstance(value, list | tuple)
        else type(value) is str or value
    )


def test_a_trace_is_cleaned_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "PIECE", 300)
    given = written(tmp_path / "t.json.gz", private_trace())
    assert left(given) == set(PLANTED)
    clean = tmp_path / "clean.json.gz"
    recording.scrubbed(given, clean, Cleaner())
    assert left(clean) == set()
    assert wordless(numbers(clean)) == wordless(numbers(given))
    assert left(given) == set(PLANTED), "the recording itself was changed"


def private_export() -> dict[str, list[dict[str, Any]]]:
    texts = {
        1: "/home/alice/hush-hush/train.py",
        2: f"epoch 1\nlogged in with {TOKEN}\nhello from alice",
        3: f"token={TOKEN}",
        4: "step",
    }
    capture = {
        "CAPTURE_EVENT_TYPE": "Cuda",
        "PROFILING_SESSION_UUID": "555bdc01-81fb-4160-8dda-3d5c1a8eda03",
        "PROCESS_0:COMMAND": "/home/alice/env/bin/python",
        "PROCESS_0:ARGUMENT_0": "--hf-token",
        "PROCESS_0:ARGUMENT_1": "s3cr3t-pw",
        "PROCESS_0:ARGUMENT_2": "--lr=3",
        "PROCESS_0:ENVIRONMENT_0": "PIN=hush-hush",
        "PROCESS_0:ENVIRONMENT_1": "NCCL_DEBUG=INFO",
        "PROCESS_0:USER_NAME": "alice",
        "DEVICE_DISPLAY_NAME": "gpu-node17",
        "EDITOR": "hush-hush",
    }
    return {
        "StringIds": [{"id": i, "value": v} for i, v in texts.items()],
        "CUPTI_ACTIVITY_KIND_KERNEL": [nsys_exports.kernel(110, 150), nsys_exports.kernel(160, 175)],
        "NVTX_EVENTS": [
            nsys_exports.push(100, 200, "step 1"),
            nsys_exports.push(120, 130, "ask 10.20.30.40 or bob@corp.example", jsonText='{"url":"http://mlflow.corp"}'),
        ],
        "META_DATA_CAPTURE": [{"name": k, "value": v} for k, v in capture.items()],
        "TARGET_INFO_SYSTEM_ENV": [
            {"name": "Hostname", "value": "gpu-node17"}, {"name": "CpuCores", "value": "18"},
            {"name": "NicInfo", "value": "hush-hush"},
        ],
        "PROCESSES": [{"globalPid": nsys_exports.process(7), "pid": 7, "name": "/home/alice/env/bin/python"}],
        "ProcessStreams": [{"globalPid": nsys_exports.process(7), "filenameId": 4, "contentId": 2}],
        "OSRT_FILE_ACCESS_EVENTS": [{"fileAccessId": 1, "startedAt": 5, "filePath": "/data/alice/x.bin"}],
    }  # fmt: skip


def test_a_database_is_cleaned_to_its_last_free_page(tmp_path: Path) -> None:
    given = nsys_exports.sqlite(tmp_path / "a.sqlite", private_export())
    with sqlite3.connect(given) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("CREATE TABLE gone (x TEXT)")
        database.executemany("INSERT INTO gone VALUES (?)", [(f"deleted s3cr3t-pw {n}",) for n in range(999)])
        database.execute("CREATE TRIGGER t AFTER UPDATE ON StringIds BEGIN DELETE FROM NVTX_EVENTS; END")
        database.commit()
        database.execute("DELETE FROM gone WHERE x <> 'deleted s3cr3t-pw 1'")
    database.close()
    assert given.read_bytes().count(b"s3cr3t-pw") > 100, "free pages were overwritten, which proves nothing"
    assert left(given) == set(PLANTED)
    clean = tmp_path / "clean.sqlite"
    recording.scrubbed(given, clean, Cleaner(also=["s3cr3t-pw"]))
    assert left(clean) == set()
    assert wordless(numbers(clean)) == wordless(numbers(given))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sqlite", "clean.sqlite"]
    with sqlite3.connect(clean) as database:
        capture = dict(database.execute("SELECT name, value FROM META_DATA_CAPTURE").fetchall())
        system = dict(database.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall())
        texts = dict(database.execute("SELECT id, value FROM StringIds").fetchall())
        assert database.execute("SELECT count(*) FROM NVTX_EVENTS").fetchall() == [(2,)]
    database.close()
    assert capture["PROCESS_0:ENVIRONMENT_0"] == "PIN=<removed>"
    assert capture["PROCESS_0:ENVIRONMENT_1"] == "NCCL_DEBUG=INFO"
    assert (capture["PROCESS_0:ARGUMENT_1"], capture["PROCESS_0:ARGUMENT_2"]) == ("<removed>", "--lr=3")
    assert (capture["EDITOR"], capture["CAPTURE_EVENT_TYPE"]) == ("<removed>", "Cuda")
    assert capture["DEVICE_DISPLAY_NAME"] == system["Hostname"] != "gpu-node17"
    assert (system["CpuCores"], system["NicInfo"]) == ("18", "<removed>")
    assert (texts[2], texts[4], texts[10]) == ("<removed>", "step", nsys_exports.STRINGS[10])


@pytest.mark.parametrize("form", [None, "file", "stream"])
def test_folders_of_tables_are_cleaned(tmp_path: Path, form: str | None) -> None:
    name = "a_pqtdir" if form is None else "a_arwdir"
    given = nsys_exports.folder(tmp_path / name, private_export(), arrow=form)
    clean = tmp_path / "clean" / name
    clean.parent.mkdir()
    recording.scrubbed(given, clean, Cleaner())
    assert wordless(numbers(clean)) == wordless(numbers(given))
    assert {p.name for p in clean.iterdir()} == {p.name for p in given.iterdir()}
    for file in clean.iterdir():
        assert left(file) == set(), file.name


def test_pieces_of_tables_in_a_folder_of_any_name_are_cleaned(tmp_path: Path) -> None:
    given = nsys_exports.folder(tmp_path / "renamed", private_export())
    for file in [f for f in given.iterdir() if f.stem != "StringIds"]:
        file.rename(file.with_name(f"{file.stem}-0.parquet"))
    clean = tmp_path / "clean"
    recording.scrubbed(given, clean, Cleaner())
    assert {p.name for p in clean.iterdir()} == {p.name for p in given.iterdir()}
    for file in clean.iterdir():
        assert left(file) == set(), file.name


def test_a_folder_is_cleaned_file_by_file_and_what_cannot_be_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "node-0000").mkdir(parents=True)
    (run / "boot").mkdir()
    (run / "boot" / "settings.jsonl").write_text("{}")
    written(run / "node-0000" / "gpu-node17_99.pt.trace.json.gz", private_trace())
    (run / "node-0000" / "steps-00000-a0.jsonl").write_text('{"host": "gpu-node17", "step": 1}\n')
    (run / "node-0000" / "nsys-00000.nsys-rep").write_text("alice")
    (run / "node-0000" / "memory.pickle").write_text("alice")
    (run / "rack7-n3_4711.1690000000000.pt.trace.json").write_text('{"traceEvents": [], "x": "rack7-n3"}')
    (run / "lostflops.log").write_text("pid 3 cannot write /home/alice/hush-hush/x.json on gpu-node17\n")
    (run / "away").symlink_to("/etc/passwd")
    clean = tmp_path / "clean"
    assert cli.main(["scrub", str(run), "--output", str(clean)]) == 0
    said = capsys.readouterr().out
    assert "left out node-0000/nsys-00000.nsys-rep: only nsys can open its reports" in said
    assert "left out node-0000/memory.pickle: " in said
    names = sorted(str(p.relative_to(clean)) for p in clean.rglob("*") if p.is_file())
    assert [n.split("/")[-1][:5] for n in names] == ["lostf", "node-", "steps", "node-"]
    assert all(not left(clean / name) and "gpu-node17" not in name for name in names)
    assert b"rack7" not in (clean / names[-1]).read_bytes() + names[-1].encode()
    assert json.loads((clean / "node-0000" / "steps-00000-a0.jsonl").read_text())["step"] == 1
    (run / "node-0000" / "nsys-00000.nsys-rep").unlink()
    for folder in (run, clean):
        next(folder.glob("*_4711.*")).unlink()
    assert wordless(numbers(clean)) == wordless(numbers(run))


def test_inspect_counts_and_prints_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    written(tmp_path / "r" / "t.json.gz", private_trace())
    nsys_exports.sqlite(tmp_path / "r" / "a.sqlite", private_export())
    (tmp_path / "r" / "b.nsys-rep").write_text("x")
    assert cli.main(["inspect", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out
    assert not [word for word in PLANTED if word in said]
    assert "a.sqlite\n  secrets          2 times, 2 different\n  environment      3 times" in said
    assert "b.nsys-rep\n  not read  only nsys can open its reports" in said
    assert "t.json.gz\n  secrets          3 times, 3 different\n  hosts            2 times" in said
    assert cli.main(["inspect", "--show", str(tmp_path / "r" / "t.json.gz")]) == 0
    shown = capsys.readouterr().out
    assert "gpu-node17" in shown
    assert "/home/alice/hush-hush" in shown
    assert TOKEN not in shown
    assert "s3cr3t-pw" not in shown
    (tmp_path / "r2").mkdir()
    written(tmp_path / "r2" / "t.json", trace(one_step()))
    assert cli.main(["inspect", str(tmp_path / "r2")]) == 0
    assert capsys.readouterr().out == "found nothing private\n"


def test_what_record_leaves_names_nobody(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = "print('$TOKEN'); model = torch.nn.Linear(8, 8); train(5)"
    where = tmp_path / "of-alice" / "hush-hush"
    where.mkdir(parents=True)
    (where / "train.py").write_text(TRAIN + script.replace("$TOKEN", TOKEN))
    command = [str(where / "train.py"), "--hf-token", "s3cr3t-pw", "--url=http://bob:s3cr3t-pw@corp"]
    recorded = record(
        tmp_path,
        sys.executable,
        *command,
        options=("--steps", "2-3", "--what", "cuda,python"),
        HF_TOKEN=TOKEN,
        MY_PIN="hush-hush",
    )
    (trace,) = recorded.run.glob("node-*/*.json.gz")
    text = gzip.decompress(trace.read_bytes())
    assert f'"host_name": "{trace.parent.name}"'.encode() in text
    assert b"train.py(" in text
    assert str(tmp_path).encode() not in text
    assert left(trace) == set()
    kept = [p for p in recorded.run.rglob("*") if p.is_file() and p.name != "recording.jsonl"]
    assert not [p.name for p in kept if left(p)]
    places = [recorded.run, *recorded.run.rglob("*")]
    assert not [p.name for p in places if p.stat().st_mode & 0o077], "others may read it"
    # The command is kept as it was typed, but for its secrets.
    assert left(recorded.run / "recording.jsonl") == {"alice", "hush-hush"}


def test_nothing_is_cleaned_in_place_or_over_something(tmp_path: Path) -> None:
    given = written(tmp_path / "t.json", private_trace())
    (tmp_path / "there").mkdir()
    for output in (given, tmp_path, tmp_path / "t.json" / "x"):
        with pytest.raises((BadOption, OutputExists)):
            recording.scrubbed(given, output, Cleaner())
    with pytest.raises(OutputExists):
        recording.scrubbed(given, tmp_path / "there", Cleaner())
    with pytest.raises(BadOption, match="'names' is not a kind that `scrub` removes"):
        recording.kinds("names")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json.gz", gzip.compress(private_trace())[:-40]),
        ("broken.sqlite", b"SQLite format 3\x00" + b"x" * 5000),
        ("broken.parquet", b"PAR1 is all there is"),
    ],
)
def test_what_is_damaged_gives_an_error_and_no_output(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LostflopsError) as raised:
        recording.scrubbed(tmp_path / name, tmp_path / "clean", Cleaner())
    assert isinstance(raised.value, NotATrace) or raised.value.hint
    assert [p.name for p in tmp_path.iterdir()] == [name]
    (tmp_path / "good.log").write_text("/home/alice/x.py\n")
    (looked,) = recording.scrubbed(tmp_path, tmp_path.parent / f"clean-{name}", Cleaner())
    assert looked.name == name
    assert looked.problem
    assert [p.name for p in (tmp_path.parent / f"clean-{name}").iterdir()] == ["good.log"]
    assert {p.name: bool(p.problem) for p in recording.inspected(tmp_path, Cleaner())} == {
        name: True,
        "good.log": False,
    }


SAMPLES = [
    "kineto/kineto_tb/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz",
    "kineto/hta/distributed_info_unavailable__distributed_info_not_found.json.gz",
]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_real_trace_says_the_same_when_it_is_clean(tmp_path: Path, name: str) -> None:
    given = REAL / name
    if not given.exists():
        pytest.skip("the shared traces are not here")
    clean = tmp_path / given.name
    recording.scrubbed(given, clean, Cleaner())
    assert numbers(clean)[0] == numbers(given)[0]


def test_a_real_export_says_the_same_when_it_is_clean(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = REAL / "nsys" / "fastvideo_train_2xH100_before.sqlite.zst"
    if not packed.exists():
        pytest.skip("the shared traces are not here")
    given, clean = tmp_path / "a.sqlite", tmp_path / "clean.sqlite"
    with packed.open("rb") as source, given.open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    recording.scrubbed(given, clean, Cleaner())
    assert numbers(clean)[0] == numbers(given)[0]
    assert b"fv_mfu_training" in clean.read_bytes()
    assert b"/opt/nvidia" not in clean.read_bytes()


@pytest.mark.parametrize("words", [["inspect"], ["scrub"]])
def test_a_table_that_ends_the_process_that_reads_it_is_told(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, ended = tmp_path / "run", tmp_path / "ended"
    (run / "kernels").mkdir(parents=True)
    ended.mkdir()
    pl.DataFrame({"name": ["x"]}).write_parquet(run / "kernels" / "bad.parquet")
    pl.DataFrame({"name": ["bob@corp.example"]}).write_parquet(run / "kernels" / "good.parquet")
    # As Polars does with some tables: the process is gone, and no error was raised in it.
    (ended / "sitecustomize.py").write_text(
        "import os, polars\n"
        "scan = polars.scan_parquet\n"
        "polars.scan_parquet = lambda path, **k: os.abort() if 'bad' in str(path) else scan(path, **k)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ended))
    made = [str(tmp_path / "clean")] if words == ["scrub"] else []
    assert cli.main([*words, str(run), *made]) == 0
    said = capsys.readouterr().out
    assert "bad.parquet" in said and "reading it ended the process that did" in said
    if made:
        (clean,) = (tmp_path / "clean").rglob("*.parquet")
        assert pl.read_parquet(clean)["name"].to_list() == ["mail-0"]
    else:
        assert "addresses        once" in said
    assert cli.main([*words, str(run / "kernels" / "bad.parquet"), *(f"{m}.parquet" for m in made)]) == 2
    assert "reading it ended the process that did" in capsys.readouterr().err


@pytest.mark.parametrize("form", [".parquet", ".arrow", ".arrows"])
def test_no_flipped_bit_of_a_table_ends_in_anything_but_words(form: str, tmp_path: Path) -> None:
    whole = tmp_path / f"whole{form}"
    frame = pl.DataFrame({"id": [1, 2, 3], "value": ["a", "bob@corp.example", None]})
    write = {".parquet": frame.write_parquet, ".arrow": frame.write_ipc, ".arrows": frame.write_ipc_stream}
    write[form](whole)
    content = whole.read_bytes()
    with Apart() as apart:
        for at in range(0, len(content), max(1, len(content) // 60)):
            spoiled = tmp_path / f"spoiled{form}"
            spoiled.write_bytes(content[:at] + bytes([content[at] ^ 0x11]) + content[at + 1 :])
            with suppress(LostflopsError):
                apart.ask("clean", spoiled, None, Settings(), Cleaner())


PACKED: dict[str, Any] = {
    "gzip": lambda text: gzip.compress(gzip.compress(text)),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": lambda text: b"PK\x03\x04" + zlib.compress(text),
    "zstd": lambda text: b"\x28\xb5\x2f\xfd" + zlib.compress(text),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.decode().encode("utf-16-le"),
    "another packing": lambda text: zlib.compress(text, 9),
}


@pytest.mark.parametrize("how", list(PACKED))
def test_what_is_no_text_is_refused_and_not_called_clean(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run" / "rank-0.json"
    file.parent.mkdir()
    file.write_bytes(
        PACKED[how](b'{"password": "correct horse", "of": "' + os.urandom(40).hex().encode() + b'"}')
    )
    assert cli.main(["scrub", str(file), "--output", str(tmp_path / "clean.json")]) == 2
    assert not (tmp_path / "clean.json").exists()
    assert cli.main(["inspect", str(file)]) == 2
    (file.parent / "notes.txt").write_text("nothing")
    assert cli.main(["scrub", str(file.parent), "--output", str(tmp_path / "clean")]) == 0
    assert [p.name for p in (tmp_path / "clean").iterdir()] == ["notes.txt"]
    assert "left out rank-0.json" in capsys.readouterr().out


def test_a_key_in_many_lines_is_not_cut_in_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "qZ7xVb3nMk9wRt5y\n" * 20 + "-----END PRIVATE KEY-----\n"
    monkeypatch.setattr("lostflops.ingest.kineto.stream.BLOCK", 64)
    for piece in range(100, 500, 37):
        monkeypatch.setattr(text, "PIECE", piece)
        file, target = tmp_path / "a.log", tmp_path / "clean.log"
        file.write_text("a line\n" * 7 + key + "another\n" * 9)
        text.packed(file, target, Cleaner(), zipped=False)
        assert target.read_text() == "a line\n" * 7 + "<removed>\n" + "another\n" * 9


def test_a_link_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert cli.main(["scrub", str(tmp_path / "a"), "--output", str(tmp_path / "c")]) == 2
    (tmp_path / "in.txt").write_text("x")
    assert cli.main(["scrub", str(tmp_path / "in.txt"), "--output", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a").read_text() == "x"
