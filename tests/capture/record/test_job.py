"""`lostflops record` in front of real training jobs: it records them, and they cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import polars as pl
import pytest

import lostflops
from recorded import QUICK_TORCH, TRAIN, environment, record, record_script

pytest.importorskip("torch")


def test_a_script_is_recorded_and_explained_and_cannot_tell(tmp_path: Path) -> None:
    # Batches come from the random generator, so one draw of ours would change every loss after it.
    (tmp_path / "theirs").mkdir()
    quick = (Path(QUICK_TORCH) / "sitecustomize.py").read_text()
    (tmp_path / "theirs" / "sitecustomize.py").write_text(quick + "os.environ['THEIRS'] = 'ran'\n")
    script = """
import importlib.util
losses = [train(1) for _ in range(12)]
print(losses, os.environ["THEIRS"], sys.modules["sitecustomize"].__file__)
print(torch.rand(3).tolist(), importlib.util.find_spec("torch").loader)
print(torch.optim.AdamW.step.__name__, sys.modules["torch.optim.optimizer"].__loader__)
sys.exit(7)
"""
    started = {"PYTHONPATH": str(tmp_path / "theirs"), "COMPILER": "1"}
    recorded = record_script(tmp_path, script, **started)
    plain = subprocess.run(
        [sys.executable, "train.py"],
        env=environment(**started),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    address = r" object at 0x"
    assert [part.split(">")[-1] for part in recorded.out.split(address)] == [
        part.split(">")[-1] for part in plain.stdout.split(address)
    ]
    assert recorded.status == plain.returncode == 7
    assert plain.stderr == ""

    window = recorded.window()
    assert (window["state"], window["first"], window["last"]) == ("complete", 3, 5)
    assert recorded.said.startswith("recorded steps 3-5 on 1 rank -> ")
    assert recorded.said.endswith(f"next: lostflops why {recorded.run}\n")
    assert [step["step"] for step in recorded.steps()] == list(range(12))
    assert [step["step"] for step in recorded.steps() if step["window"]] == [3, 4, 5]
    assert recorded.steps()[0]["duration"] is None
    assert all(step["duration"] > step["optimizer"] > 0 for step in recorded.steps()[1:])
    steps = lostflops.open(recorded.run).table("steps")
    assert steps is not None
    assert steps.collect()["step"].to_list() == [3, 4, 5]


def test_loader_workers_leave_nothing(tmp_path: Path) -> None:
    script = """
import torch._prims.rng_prims  # a worker's generator needs it
class Data(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        time.sleep(.002)
        return torch.full((8,), float(i))
if __name__ == "__main__":
    for method in "fork", "spawn":
        train(10, torch.utils.data.DataLoader(Data(), 4, num_workers=1, multiprocessing_context=method))
"""
    recorded = record_script(tmp_path, script, options=("--steps", "3-5,13-15"))
    assert recorded.status == 0, recorded.said
    assert [window["state"] for window in recorded.windows()] == ["complete", "complete"]
    waited = [step["data"] for step in recorded.steps()]
    assert len(waited) == 20 and sum(waited[:10]) > 0 < sum(waited[10:])
    assert len(list(recorded.run.glob("node-*/*"))) == 3
    assert not (recorded.run / "lostflops.log").exists()


def test_the_jobs_own_profiler_wins(tmp_path: Path) -> None:
    # The first window is open when it starts; the second would be opened while it is in warm-up.
    script = """
from torch.profiler import profile, schedule
train(4)
plan = schedule(wait=0, warmup=2, active=2)
with profile(schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace("own.json")) as p:
    for _ in range(4):
        train(1)
        p.step()
train(3)
with profile(schedule=schedule(wait=0, warmup=20, active=1)) as p:
    for _ in range(9):
        train(1)
        p.step()
"""
    recorded = record_script(tmp_path, script, options=("--steps", "3-9,13-16"))
    assert recorded.status == 0, recorded.said
    partial, lost = recorded.windows()
    assert (partial["state"], partial["first"], partial["last"]) == ("partial", 3, 3)
    assert "the job's own profiler was started" in recorded.said
    assert '"aten::addmm"' in (tmp_path / "own.json").read_text()
    assert (lost["state"], lost["reason"]) == ("lost", "the job's own profiler was running")
    assert (partial["code"], lost["code"]) == ("own_profiler", "own_profiler")
    assert "rank 0 is missing one window: the job's own profiler was running" in recorded.said
    assert len(recorded.steps()) == 20


def test_sigterm_keeps_the_window_and_the_status(tmp_path: Path) -> None:
    recorded = record_script(
        tmp_path,
        "train(7)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
        options=("--steps", "3-99"),
    )
    assert recorded.status == -15
    window = recorded.window()
    assert (window["state"], window["reason"], window["last"]) == ("partial", "the job was terminated", 6)


def test_a_second_sigterm_does_not_interrupt_the_writing(tmp_path: Path) -> None:
    """Slurm sends one to the step and one more when a task of it has ended."""
    script = """
import subprocess
train(200)
again = "import os, time; [(os.kill({pid}, 15), time.sleep(.001)) for _ in range(2000)]"
subprocess.Popen([sys.executable, "-S", "-c", again.format(pid=os.getpid())], stderr=subprocess.DEVNULL)
time.sleep(60)
"""
    recorded = record_script(tmp_path, script, options=("--steps", "3-999"))
    assert recorded.status == -15
    window = recorded.window()
    assert (window["state"], window["last"]) == ("partial", 199)


def test_os_exit_loses_the_open_window_only(tmp_path: Path) -> None:
    recorded = record_script(tmp_path, "train(7)\nos._exit(5)", options=("--steps", "3-99"))
    assert recorded.status == 5
    assert (
        "nothing was recorded: the job ended with status 5 in its step 7, while the window was open"
        in recorded.said
    )
    assert "Hint: `--steps 3-6`\n" in recorded.said
    assert len(recorded.steps()) == 7


def test_sigkill_loses_the_open_window_only_and_absent_ranks_are_named(tmp_path: Path) -> None:
    recorded = record_script(
        tmp_path,
        "train(7)\nos.kill(os.getpid(), signal.SIGKILL)",
        options=("--steps", "3-4,6-99"),
        RANK="1",
        LOCAL_RANK="1",
        WORLD_SIZE="3",
    )
    assert recorded.status == -9
    assert len(recorded.steps(1)) == 7
    assert [window["state"] for window in recorded.windows(1)] == ["complete"]
    assert recorded.said.startswith("recorded steps 3-4 on 1 rank")
    assert "ranks 0, 2 logged no step" in recorded.said


def test_an_exception_ends_the_window_of_a_module_early(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "train(7)\nraise ValueError('theirs')")
    recorded = record(tmp_path, sys.executable, "-X", "dev", "-m", "train", options=("--steps", "3-99"))
    assert recorded.status == 1
    assert "ValueError: theirs" in recorded.said
    assert "ended early: the job ended" in recorded.said
    assert recorded.window()["last"] == 6


def test_torch_compile_sees_the_same_frames(tmp_path: Path) -> None:
    # A backend of our own, so that no compiler is needed.
    script = """
import torch._dynamo
def backend(graph, inputs): return graph.forward
compiled = torch.compile(model, backend=backend)
step = torch.compile(lambda: optimizer.step(), backend=backend)
def passes(x): model(x).square().mean().backward()
passes = torch.compile(passes, backend=backend)
for i in range(9):
    passes(torch.randn(6 if i == 5 else 4, 8))
    compiled(torch.randn(4, 8)).square().mean().backward()
    step() if i % 2 else optimizer.step()
counters = torch._dynamo.utils.counters
print(dict(counters["frames"]), dict(counters["stats"]), len(counters["graph_break"]))
"""
    recorded = record_script(tmp_path, script, COMPILER="1")
    plain = subprocess.run(
        [sys.executable, "train.py"],
        env=environment(COMPILER="1"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "frames" not in plain.stderr and plain.stdout
    assert recorded.out == plain.stdout
    assert recorded.window()["state"] == "complete"
    assert len(recorded.steps()) == 9


def test_a_full_disk_loses_the_window_and_nothing_else(tmp_path: Path) -> None:
    # No room is asked for by asking for more than any disk has.
    script = """
import lostflops_recorder.settings as s
read = s.read
import dataclasses
s.read = lambda: dataclasses.replace(read(), keep_free=1 << 60)
train(9)
"""
    recorded = record_script(tmp_path, script)
    assert recorded.status == 0
    assert "MB are free on the disk\nHint: free some space" in recorded.said
    assert len(recorded.steps()) == 9


def test_a_fault_of_ours_is_not_the_jobs(tmp_path: Path) -> None:
    script = """
import lostflops_recorder.windows.window as w
def broken(self): raise RuntimeError("ours")
w.Window._start = broken
print(train(9))
"""
    recorded = record_script(tmp_path, script)
    assert recorded.status == 0 and recorded.out
    assert "RuntimeError: ours" in recorded.said


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_is_full_or_read_only_costs_the_recording_only(tmp_path: Path, small_disk: Path) -> None:
    # It fills up after the first steps and is emptied again; then another job finds it read-only.
    script = f"""
print(train(5))
disk = {str(small_disk)!r}
with open(disk + "/full", "wb", buffering=0) as full:
    try:
        while full.write(b"0" * 4096): pass
    except OSError: pass
print(train(5))
os.unlink(disk + "/full")
print(train(9))
"""
    (tmp_path / "train.py").write_text(TRAIN + script)
    run = small_disk / "run"
    before = [sys.executable, "-m", "lostflops", "record", "--steps", "2-3,6-7,12-13", "--output", str(run)]
    done = subprocess.run(
        [*before, "--", sys.executable, "train.py"],
        env=environment(),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr
    assert "MB are free on the disk" in done.stderr
    steps = [json.loads(line) for line in next(run.glob("node-*/steps-*")).read_text().split("\n") if line]
    assert {0, 1, 2, 3, 4} <= {step["step"] for step in steps if "step" in step}
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    again = subprocess.run([*before[:-1], str(small_disk / "b"), "--", "true"], env=environment(),
                           capture_output=True, text=True)  # fmt: skip
    assert again.returncode == 2
    assert "could not be written: Read-only file system" in again.stderr


def test_a_rank_that_cannot_write_the_run_folder_is_recorded_elsewhere(tmp_path: Path) -> None:
    forbid = "os.chmod(l.RUN, 0o500)"
    if os.geteuid() == 0:  # who may write everywhere
        forbid = "os.system(f'mount --bind {l.RUN} {l.RUN} && mount -o remount,bind,ro {l.RUN}')"
    script = f"""
import lostflops_recorder.log as l
{forbid}
try: os.close(os.open(l.RUN + "/probe", os.O_CREAT | os.O_WRONLY))
except OSError: print("forbidden")
print(train(9))
os.chmod(l.RUN, 0o700) if os.geteuid() else os.system(f"umount --lazy {{l.RUN}}")
"""
    (tmp_path / "tmp").mkdir()
    recorded = record_script(tmp_path, script, TMPDIR=str(tmp_path / "tmp"))
    if "forbidden" not in recorded.out:
        pytest.skip("a folder cannot be made read-only here")
    assert recorded.status == 0 and recorded.out.count("\n") == 2
    assert recorded.said.count("lostflops: rank 0:") == 1
    (folder,) = (tmp_path / "tmp").glob("lostflops-*/run")
    assert f"its recording lies in {folder}" in recorded.said
    assert len(list(folder.glob("node-*/window-*"))) == 1


def test_checkpoints_and_full_collections_are_ranges_of_recorded_steps(tmp_path: Path) -> None:
    """Without call stacks too, so that idle time can be told by its cause."""
    script = """
import gc, io
for _ in range(8):
    train(1)
    torch.save(model.state_dict(), io.BytesIO())
    gc.collect()
"""
    recorded = record_script(tmp_path, script)
    table = lostflops.open(recorded.run).table("ranges")
    assert table is not None
    names = table.collect()["name"].cast(str).to_list()
    assert names.count("torch.save") == names.count("gc.collect") == 3
    accounts = lostflops.ask(recorded.run, "idle_summary")["account"].to_list()
    assert {"idle.checkpoint_logging", "idle.garbage_collection"} <= set(accounts)


def test_collections_of_young_objects_are_ranges_where_they_take_long(tmp_path: Path) -> None:
    """A job that makes many cycles collects only young objects, hundreds of times, and loses time to it."""
    script = """
import gc
gc.set_threshold(20_000, 1_000, 1_000)
class Node: pass
def cycles(number):
    for _ in range(number):
        node = Node()
        node.itself = node
for _ in range(8):
    train(1)
    cycles(30_000)
"""
    recorded = record_script(tmp_path, script)
    (told,) = lostflops.ask(recorded.run, "step_log_summary").select("recorded_garbage_share").rows()
    ledger = lostflops.ask(recorded.run, "step_ledger")
    shares = ledger.select(
        garbage=pl.col("ns").filter(pl.col("account") == "idle.garbage_collection").sum() / pl.col("ns").sum()
    )
    assert told[0] > 0.1
    assert shares.item() == pytest.approx(told[0], rel=0.2)


def test_the_framework_that_drives_a_job_is_recorded_for_its_advice(tmp_path: Path) -> None:
    """What is merely imported does not count."""
    pytest.importorskip("accelerate")
    (tmp_path / "plain").mkdir()
    wait = """
import accelerate
def batches():
    for _ in torch.utils.data.DataLoader(range(9), collate_fn=lambda rows: time.sleep(0.02)):
        yield torch.randn(4, 8)
"""
    plain = record_script(tmp_path / "plain", wait + "train(9, batches())\n", COMPILER="1")
    leads = "leads = accelerate.Accelerator(cpu=True)\n"
    led = record_script(tmp_path, wait + leads + "train(9, batches())\n", COMPILER="1")
    pages = [lostflops.why(recorded.run) for recorded in (plain, led)]
    advice = [
        next(f.next for f in page.findings if f.name == "data-loading-starves-device") for page in pages
    ]
    assert "DataLoaderConfiguration" not in advice[0] and advice[0] != advice[1]
    ranks = lostflops.open(led.run).table("ranks")
    assert ranks is not None and ranks.collect()["frameworks"].to_list() == ["accelerate"]


def test_what_other_threads_load_and_save_is_no_time_of_a_step(tmp_path: Path) -> None:
    script = """
import threading
batches = iter(torch.utils.data.DataLoader(list(range(64))))
def beside():
    next(batches)
    torch.save(model.state_dict(), "beside.pt")
for _ in range(3):
    train(1)
    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
train(1)
next(batches)
torch.save(model.state_dict(), "own.pt")
train(1)
"""
    recorded = record_script(tmp_path, script, options=("--steps", "2-3"))
    taken = [(step["data"] > 0, step["checkpoint"] > 0) for step in recorded.steps()]
    assert taken == [(False, False)] * 4 + [(True, True)]
