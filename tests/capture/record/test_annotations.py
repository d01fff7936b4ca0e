"""Code is marked by name in whatever records it, and cannot tell."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops import cli
from lostflops.capture.record import annotation_file
from lostflops.capture.record.injected.lostflops_recorder.marks import mark
from lostflops.errors import BadAnnotations, Unreadable
from recorded import TRAIN, environment, record


class Profiler(types.SimpleNamespace):
    """Stands for `torch.autograd.profiler`: notes which ranges are entered and left."""

    def __init__(self, recording: bool = True) -> None:
        super().__init__(_is_profiler_enabled=recording)
        self.seen: list[str] = []

    def record_function(self, text: str) -> Any:
        seen = self.seen

        class Entered:
            def __enter__(self) -> None:
                seen.append(f"+{text}")

            def __exit__(self, *_: object) -> None:
                seen.append(f"-{text}")

        return Entered()


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Profiler]:
    made = Profiler()
    monkeypatch.setattr(mark, "_profiler", made)
    monkeypatch.setattr(mark, "_is_compiling", lambda: False)
    monkeypatch.setattr(mark, "look", lambda: None)
    yield made


def marked(function: Any, text: str = "f") -> Any:
    return mark.annotated(function, mark.Annotation(text))


def test_marks_import_nothing() -> None:
    script = """
import sys, lostflops
@lostflops.annotate
def double(x): return 2 * x
with lostflops.range("all", domain="mine", color="teal"):
    print(double(21))
print(*{"torch", "polars", "nvtx", "numpy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["42", "", ""]


def test_a_range_stands_around_what_runs_in_it(profiler: Profiler) -> None:
    @lostflops.annotate("inner", domain="model")
    def inner(x: int) -> int:
        return x + 1

    @lostflops.annotate
    def outer(x: int) -> int:
        with lostflops.range("part", domain="a:b"):
            return inner(x)

    assert outer(1) == 2
    name = outer.__module__ + "." + outer.__qualname__
    opened = [name, "lostflops:a.b:part", "lostflops:model:inner"]
    assert profiler.seen == [f"+{text}" for text in opened] + [f"-{text}" for text in reversed(opened)]


def test_a_range_ends_when_what_runs_in_it_raises(profiler: Profiler) -> None:
    @lostflops.annotate("f")
    def f() -> None:
        raise KeyError("theirs")

    for broken in (f, marked(lambda: iter(()).__next__(), "g")):
        with pytest.raises((KeyError, StopIteration)), lostflops.range("r"):
            broken()
    assert profiler.seen == ["+r", "+f", "-f", "-r", "+r", "+g", "-g", "-r"]


def test_a_range_that_the_recording_cuts_in_two_is_left_alone(profiler: Profiler) -> None:
    one = lostflops.range("one")
    profiler._is_profiler_enabled = False
    with one:
        profiler._is_profiler_enabled = True
        with one, one:
            pass
    assert profiler.seen == ["+one", "+one", "-one", "-one"]


def test_a_fault_in_marking_is_not_the_jobs(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Exception] = []
    monkeypatch.setattr(mark, "faults", heard.append)
    for name in ("_fast", "_always", "_under_nsys"):
        monkeypatch.setattr(mark, name, getattr(mark, name))

    def broken(text: str) -> Any:
        raise RuntimeError(text)

    profiler.record_function = broken
    f = marked(lambda: 5, "text")
    assert f() == f() == 5
    assert [str(error) for error in heard] == ["text"], "after one fault nothing is marked any more"


def test_what_an_annotated_function_is_does_not_change(profiler: Profiler) -> None:
    class Thing:
        def method(self, x: int) -> tuple[object, int]:
            return self, x

        @classmethod
        def made(cls, x: int) -> tuple[object, int]:
            return cls, x

        @staticmethod
        def free(x: int) -> int:
            return x

        @property
        def size(self) -> int:
            return 3

        @size.setter
        def size(self, value: int) -> None:
            self.value = value

    for name in ("method", "made", "free", "size"):
        setattr(Thing, name, marked(inspect.getattr_static(Thing, name), name))
    thing = Thing()
    assert thing.method(1) == (thing, 1)
    assert Thing.made(2) == thing.made(2) == (Thing, 2)
    assert Thing.free(3) == thing.free(3) == 3
    thing.size = 4
    assert (thing.size, thing.value) == (3, 4)

    partial = functools.partial(int, base=2)
    assert isinstance(marked(functools.partial(mark.argb, "red")), functools.partial)
    assert (partial("11"), marked(len)([1])) == (3, 1)
    assert inspect.signature(marked(mark.argb)) == inspect.signature(mark.argb)
    assert Counter(profiler.seen)["+made"] == 2


def cached() -> Any:
    return functools.lru_cache(len)


async def many() -> Any:
    yield 1


@pytest.mark.parametrize("found", [Profiler, cached(), many, 3, None, Profiler()])
def test_what_may_be_used_as_more_than_a_function_is_not_replaced(found: Any) -> None:
    with pytest.raises(TypeError):
        marked(found)


def test_annotating_a_class_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"lostflops\.annotate marks functions and methods; this is a class"):
        lostflops.annotate(Profiler)


def echo() -> Generator[Any, Any, str]:
    """Answers what it is sent, and survives ValueError."""
    sent = yield "first"
    while sent != "end":
        try:
            sent = yield sent
        except ValueError as error:
            sent = f"{error}"
    return "done"


def steered(make: Any) -> list[Any]:
    """All that can be done with a generator."""
    said: list[Any] = []
    it = make()
    said += [next(it), it.send(1), it.throw(ValueError("thrown")), inspect.isgeneratorfunction(make)]
    try:
        it.send("end")
    except StopIteration as end:
        said.append(end.value)
    closed = make()
    next(closed)
    closed.close()
    said += [list(closed), inspect.getgeneratorstate(closed)]
    raised = make()
    next(raised)
    with pytest.raises(KeyError):
        raised.throw(KeyError("theirs"))
    return said


def test_a_generator_is_marked_while_it_runs_and_not_while_it_waits(profiler: Profiler) -> None:
    assert steered(marked(echo)) == steered(echo)
    runs = len(profiler.seen) // 2
    assert profiler.seen == ["+f", "-f"] * runs
    assert runs == 4 + 1 + 2


def test_a_coroutine_is_marked_while_it_runs_and_not_while_it_waits(profiler: Profiler) -> None:
    async def slow(text: str) -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return text

    async def both() -> list[str]:
        return await asyncio.gather(*(marked(slow, text)(text) for text in "ab"))

    assert inspect.iscoroutinefunction(marked(slow))
    assert asyncio.run(both()) == ["a", "b"]
    assert profiler.seen == ["+a", "-a", "+b", "-b"] * 3


def test_under_nsys_ranges_go_to_nvtx_with_domain_and_colour(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiler._is_profiler_enabled = False
    said: list[Any] = []
    nvtx = types.SimpleNamespace(
        push_range=lambda text, **more: said.append((text, more)), pop_range=lambda **more: said.append(more)
    )
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(version=types.SimpleNamespace(cuda=None)))
    monkeypatch.setattr(mark, "_under_nsys", True)
    monkeypatch.setattr(mark, "_always", True)
    mark._nvtx_package.cache_clear()
    with lostflops.range("a", domain="d", color="#E8B795"), lostflops.range("b"):
        pass
    mark._nvtx_package.cache_clear()
    assert said == [
        ("a", {"color": 0xFFE8B795, "domain": "d"}),
        ("b", {"color": None}),
        {},
        {"domain": "d"},
    ]
    # A CUDA build's own ranges are seen by every Nsight Systems; they have no domains.
    pushed: list[str] = []
    cuda = types.SimpleNamespace(
        nvtx=types.SimpleNamespace(range_push=pushed.append, range_pop=lambda: pushed.append("-"))
    )
    torch = types.SimpleNamespace(version=types.SimpleNamespace(cuda="13.0"), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with lostflops.range("a", domain="d"), lostflops.range("b"):
        pass
    assert pushed == ["lostflops:d:a", "b", "-", "-"]


def test_domains_are_read_back_from_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    mark.look()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with lostflops.range("plain"), lostflops.range("of: it", domain="model"):
            torch.ones(3)
        # A session that was opened from outside is not seen: PyTorch's cheaper range is there for those.
        monkeypatch.setattr(mark, "_profiler", mark._NothingRecords)
        monkeypatch.setattr(mark, "_fast", torch._C._profiler._RecordFunctionFast)
        monkeypatch.setattr(mark, "_always", True)
        with lostflops.range("fast"), lostflops.range("fast", domain="io"):
            torch.ones(3)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ranges = lostflops.open(tmp_path / "trace.json").table("ranges")
    assert ranges is not None
    read = ranges.sort("start").select("domain", "name", "nested").collect().rows()
    assert read == [
        ("user", "plain", True),
        ("model", "of: it", True),
        ("user", "fast", True),
        ("io", "fast", True),
    ]


# The file


def test_a_file_says_which_functions(tmp_path: Path) -> None:
    file = tmp_path / "annotations.json"
    file.write_bytes(
        b"\xef\xbb\xbf"
        + json.dumps(
            [
                {"_comment": "ours to keep", "domain": "model", "color": "0x008000", "module": "m.n"}
                | {"functions": ["f", {"function": "C.g", "color": "red", "module": "o", "payload": 1}]},
                {"module": "m.n", "functions": ["C.f"], "category": "layers"},
            ]
        ).encode()
    )
    first, second, third = annotation_file.read(file)
    assert first == {
        "module": "m.n",
        "function": "f",
        "text": "m.n.f",
        "domain": "model",
        "color": 0xFF008000,
    }
    assert (second["text"], second["domain"], second["color"]) == ("o.C.g", "model", 0xFFFF0000)
    assert (third["text"], third["domain"], third["color"]) == ("m.n.C.f", "", None)


M = '{"module": "m", "functions": ["f"]'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, r"^a\.json: it is not JSON"),
        ("\x00", r"^a\.json: it is not JSON"),
        (M + "}", r"^a\.json: it is not a list of entries"),
        ("[]", r"^a\.json: it names no function"),
        (f"[{M}}}, 7]", r"^entry 2 of a\.json: it is not a JSON object"),
        ('[{"module": "m"}]', r"^entry 1 of a\.json: it has no 'functions'"),
        ('[{"functions": ["f"]}]', r"^entry 1, function 1 of a\.json: .* 'module'"),
        (
            '[{"module": "m", "functions": "f"}]',
            r"^entry 1 of a\.json: its 'functions' is empty or not a list\.",
        ),
        (
            '[{"module": "m", "functons": ["f"]}]',
            r"there is no key 'functons'\. Did you mean 'functions'",
        ),
        ('[{"module": "m", "functions": ["f", {"functin": "g"}]}]', r"^entry 1, function 2 .*'functin'"),
        (
            '[{"module": "m", "functions": ["f", {}]}]',
            r"^entry 1, function 2 of a\.json: it has no 'function'",
        ),
        ('[{"module": "m", "functions": ["f()"]}]', r'its function "f\(\)" is not a dotted name'),
        ('[{"module": "m/n", "functions": ["f"]}]', r'its module "m/n" is not a dotted name'),
        (f'[{M}, "color": "blurple"}}]', r'its color "blurple" is not a color'),
        (f'[{M}, "color": 4294967296}}]', r"its color 4294967296 is not a color"),
        (f'[{M}, "color": [1]}}]', r"its color \[1\] is not a color"),
        (f'[{M}, "domain": "a:b"}}]', r"its domain is not a text of one line without a colon"),
        (f"[{M}}}, {M}}}]", r"^entry 2, function 1 of a\.json: 'm\.f' is in the file twice"),
        (
            '[{"module": "torch", "functions": ["compiler.is_compiling"]}]',
            r"is used by lostflops to make annotations and cannot be annotated itself",
        ),
    ],
)
def test_a_wrong_file_is_refused_and_the_entry_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadAnnotations, match=said):
        annotation_file.read(tmp_path / "a.json")


def test_a_wrong_file_is_refused_before_the_job_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('[{"module": "m", "functions": ["f", {"functin": "g"}]}]')
    options = ["--annotate", str(tmp_path / "a.json"), "--output", str(tmp_path / "run")]
    assert cli.main(["record", *options, "--", "touch", str(tmp_path / "started")]) == 2
    assert "entry 1, function 2 of a.json: there is no key 'functin'" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        annotation_file.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("green", 0xFF008000),
        ("E8B795", 0xFFE8B795),
        ("#e8b795", 0xFFE8B795),
        ("0x80E8B795", 0x80E8B795),
        (5, 0xFF000005),
        (None, None),
    ],
)
def test_colours_are_read_as_nsight_users_write_them(given: Any, meant: int | None) -> None:
    assert mark.argb(given) == meant


# In a recorded job

HELPER = """
def collate(x): return x
class Tokeniser:
    @staticmethod
    def encode(x): return x + 1
    def parts(self):
        yield 1
        yield 2
class Whole: pass
"""
SCRIPT = """
import asyncio, inspect, pickle
import helper
from helper import collate
tokeniser = helper.Tokeniser()
def loss_of(batch, *, scale=1.0):
    return model(collate(batch)).square().mean() * scale
early = loss_of
def every(a, /, b, *c, d=1, **e):
    return a, b, c, d, e
async def wait(x): return x
def main():
    for i in range(8):
        optimizer.zero_grad()
        helper.Tokeniser.encode(sum(tokeniser.parts()))
        early(torch.randn(4, 8), scale=2.0).backward()
        optimizer.step()
main()
print([p.sum().item() for p in model.parameters()])
print(pickle.loads(pickle.dumps(early)) is early, inspect.signature(early), inspect.getsource(early))
print(every(1, 2, 3, d=4, f=5), every(1, b=2), inspect.signature(every))
print(asyncio.run(wait(6)), inspect.iscoroutinefunction(wait))
"""
ANNOTATIONS = [
    {"module": "torch.nn.functional", "domain": "act", "functions": ["relu"]},
    {"module": "torch.optim.adamw", "functions": ["AdamW.step"]},
    {"module": "helper", "domain": "io", "functions": ["collate", "Tokeniser.encode", "Tokeniser.parts"]},
    {"module": "helper", "functions": ["Whole", "gone"]},
    {"module": "__main__", "functions": ["loss_of", "main", "every", "wait"]},
    {"module": "never", "functions": ["f"]},
]


def test_functions_of_a_job_are_annotated_from_outside(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(TRAIN + SCRIPT)
    (tmp_path / "a.json").write_text(json.dumps(ANNOTATIONS))
    plain = subprocess.run(
        [sys.executable, "train.py"], env=environment(), capture_output=True, text=True, cwd=tmp_path
    )
    options = ("--steps", "3-5", "--annotate", str(tmp_path / "a.json"))
    recorded = record(tmp_path, sys.executable, "train.py", options=options)
    assert (recorded.status, recorded.out) == (0, plain.stdout), recorded.said
    ranges = lostflops.open(recorded.run).table("ranges")
    assert ranges is not None
    counts = Counter(ranges.select("domain", "name").collect().rows())
    assert {row: n for row, n in counts.items() if row[0] != "user" or "." in row[1].split("#")[0]} == {
        ("act", "torch.nn.functional.relu"): 3,
        ("user", "torch.optim.adamw.AdamW.step"): 3,
        ("io", "helper.collate"): 3,
        ("io", "helper.Tokeniser.encode"): 3,
        ("io", "helper.Tokeniser.parts"): 9,
        ("user", "__main__.loss_of"): 3,
        ("user", "Optimizer.step#AdamW.step"): 3,
        ("user", "Optimizer.zero_grad#AdamW.zero_grad"): 3,
    }
    assert not (recorded.run / "lostflops.log").exists()
    for line in (
        "not annotated, it is a class: annotate its methods: helper.Whole",
        "not annotated, helper has no 'gone': helper.gone",
        "not annotated, the module was not imported: never.f",
        "annotated, but not called while recording: __main__.main, __main__.every, __main__.wait",
    ):
        assert f"\n{line}\n" in recorded.said


def test_annotations_leave_compiled_graphs_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
import torch._dynamo
def backend(graph, inputs): return graph.forward
def forward(x): return torch.nn.functional.relu(model(x))
def loss_of(x): return forward(x).square().mean()
compiled = torch.compile(loss_of, backend=backend)
for i in range(8):
    compiled(torch.randn(4, 8)).backward()
    optimizer.step()
counters = torch._dynamo.utils.counters
print(dict(counters["frames"]), dict(counters["stats"]), len(counters["graph_break"]))
"""
    (tmp_path / "train.py").write_text(TRAIN + script)
    entries = [
        {"module": "torch.nn.functional", "functions": ["relu"]},
        {"module": "torch.nn.modules.linear", "functions": ["Linear.forward"]},
        {"module": "__main__", "functions": ["loss_of"]},
    ]
    (tmp_path / "a.json").write_text(json.dumps(entries))
    plain = subprocess.run(
        [sys.executable, "train.py"],
        env=environment(COMPILER="1"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    options = ("--steps", "3-5", "--annotate", str(tmp_path / "a.json"))
    recorded = record(tmp_path, sys.executable, "train.py", options=options, COMPILER="1")
    assert plain.stdout and recorded.out == plain.stdout, recorded.said
    (calls,) = [line["calls"] for line in recorded.lines() if line.get("kind") == "annotations"]
    # What a graph holds is not called, unless its backend calls it by name as this one does with functions.
    # What is compiled is called, and is marked around its graph.
    assert calls == {
        "torch.nn.functional.relu": 6,
        "torch.nn.modules.linear.Linear.forward": 0,
        "__main__.loss_of": 3,
    }


def test_marks_in_compiled_code_break_no_graph() -> None:
    torch = pytest.importorskip("torch")
    mark.look()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @lostflops.annotate("layer", domain="model")
    def layer(x: Any) -> Any:
        return x.relu() * 2

    def model(x: Any) -> Any:
        with lostflops.range("forward", color="red"):
            x = layer(x)
        return layer(x) + 1

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    compiled(torch.ones(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        compiled(torch.ones(3))
    torch._dynamo.reset()
    assert len(graphs) == 1


def test_an_annotated_function_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(pickled)) is pickled


@lostflops.annotate
def pickled() -> None: ...
