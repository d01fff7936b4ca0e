"""Plays the user's nsys in tests: an older and a newer one, and what goes wrong with either.

FAKE_NSYS        2023.4, 2026.2, or 2020.1, which is too old
FAKE_NSYS_FAULT  device, untriggered, lost, empty, slow, hang
FAKE_NSYS_LOG    a file for one line per call: its words, folder, and some of its environment
FAKE_NSYS_EXPORT what `export` gives
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

VERSION = os.environ.get("FAKE_NSYS", "2026.2")
FAULT = os.environ.get("FAKE_NSYS_FAULT", "")
OLD = {
    "trace": "cuda nvtx cublas cudnn cusparse mpi osrt ucx oshmem python-gil none",
    "sample": "process-tree system-wide none",
    "cpuctxsw": "process-tree system-wide none",
    "output": "",
    "capture-range": "none cudaProfilerApi nvtx hotkey",
    "capture-range-end": "none stop stop-shutdown repeat[:N] repeat-shutdown:N",
    "nvtx-capture": "",
    "kill": "none sigkill sigterm",
    "wait": "primary all",
    "delay": "",
    "duration": "",
    "start-later": "true false",
    "session-new": "",
    "osrt-threshold": "",
    "cuda-memory-usage": "true false",
    "cuda-graph-trace": "graph node",
    "python-sampling": "true false",
    "gpu-metrics-device": "",
    "nic-metrics": "true false",
    "resolve-symbols": "true false",
    "cuda-flush-interval": "",
}
NEW = {
    **{name: values for name, values in OLD.items() if name != "gpu-metrics-device"},
    "trace": f"{OLD['trace']} cuda-sw cuda-hw nccl gds s3 syscall cusolver",
    "gpu-metrics-devices": "",
    "nic-metrics": "none lf hf hf-via-dts true false",
    "pytorch": "autograd-nvtx autograd-shapes-nvtx functions-trace functions-trace-shapes none",
    "cuda-event-trace": "true false",
    "discard-environment": "true false",
    "show-source-info": "true false",
}
KNOWN = {"2023.4": OLD, "2026.2": NEW, "2020.1": {"trace": OLD["trace"], "output": ""}}[VERSION]
SHORT = {"t": "trace", "o": "output", "c": "capture-range", "s": "sample", "y": "delay", "d": "duration"}


def heading(name: str) -> str:
    short = next((f"-{letter}, " for letter, long in SHORT.items() if long == name), "")
    return f"\t{short}--{name}=\n\n"


def block(name: str, values: str) -> str:
    """A switch as the help shows it: its values in quotes, wrapped, the last after 'or'."""
    quoted = [f"'{value}'" for value in values.split()]
    text = f"Set how {name.replace('-', ' ')} works."
    if quoted:
        text = f"Possible values are {', '.join(quoted[:-1])} or {quoted[-1]}. {text}"
    if name == "trace":
        text += " With '<api>-annotations' the calls of an api are shown; --sample=none takes no samples."
    words, lines = text.split(), [""]
    for word in words:
        lines = [*lines, ""] if len(lines[-1]) > 50 else lines
        lines[-1] += f"{word} "
    return heading(name) + "".join(f"\t   {line.rstrip()}\n" for line in lines) + "\n"


def usage(command: str) -> str:
    known = KNOWN if command == "profile" else {"session": ""} if command != "export" else {}
    return f"usage: nsys {command} [<args>] [application]\n\n" + "".join(block(*one) for one in known.items())


def refuse(why: str) -> None:
    print(f"refused: {why}", file=sys.stderr)
    sys.exit(1)


def parsed(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Switches and the application."""
    given: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, _, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, value = SHORT.get(name, name), rest.pop(0)
        if name not in KNOWN:
            refuse(f"there is no switch {word}")
        listed = KNOWN[name].split()
        for one in value.split(",") if name == "trace" else []:
            if one not in listed:
                refuse(f"'{one}' cannot be traced")
        given[name] = value
    return given, rest


def expanded(name: str) -> str:
    name = re.sub(r"%q\{(\w+)\}", lambda m: os.environ.get(m[1], m[0]), name)
    return name.replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))


def session_file(name: str) -> Path:
    return Path(os.environ["FAKE_NSYS_LOG"]).with_name(f"{name}.session")


def profile(words: list[str]) -> int:
    given, application = parsed(words)
    output = Path(expanded(given.get("output", "report")) + ".nsys-rep")
    log(words, output=str(output))
    if FAULT == "device" and any("metrics" in name for name in given):
        refuse("this GPU's counters cannot be read")
    inside = {**os.environ, "NSYS_PROFILING_SESSION_ID": "4711"}
    child = subprocess.Popen(application, env=inside)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda received, _: child.send_signal(received))
    ends = "duration" in given or given.get("capture-range-end", "stop-shutdown") == "stop-shutdown"
    if ends and given.get("kill") != "none" and ("duration" in given or "capture-range" in given):
        time.sleep(float(given.get("duration", 0.2)))
        child.terminate()
    status = child.wait()
    if FAULT == "slow":
        time.sleep(1.5)
    if FAULT == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(600)
    recorded = "session-new" not in given or session_file(given["session-new"]).exists()
    if recorded and FAULT not in ("untriggered", "lost"):
        output.write_bytes(b"" if FAULT == "empty" else f"a report of nsys {VERSION}".encode())
    return status if status >= 0 else 128 - status


def log(words: list[str], **more: str) -> None:
    if "FAKE_NSYS_LOG" in os.environ:
        names = ("RANK", "PYTHONUNBUFFERED", "TMPDIR", "NSYS_MPI_STORE_TEAMS_PER_RANK")
        chosen = {name: os.environ.get(name) for name in names}
        with Path(os.environ["FAKE_NSYS_LOG"]).open("a") as file:
            line = {
                "command": sys.argv[1],
                "words": words,
                "cwd": str(Path.cwd()),
                "environment": chosen,
                **more,
            }
            file.write(json.dumps(line) + "\n")


def main() -> int:
    command, *words = sys.argv[1:] or [""]
    if command == "--version":
        print(f"NVIDIA Nsight Systems version {VERSION}.1.89-236149677593v0")
        return 0
    if "--help" in words[:1]:
        print(usage(command))
        return 0
    if command == "profile":
        return profile(words)
    if command in ("start", "stop"):
        log(words)
        name = dict(word.lstrip("-").split("=") for word in words)["session"]
        session_file(name).write_text(command)
        return 0
    if command == "export":
        log(words)
        target = next(word for word in words if word.startswith("--output=")).partition("=")[2]
        Path(target).write_bytes(Path(os.environ["FAKE_NSYS_EXPORT"]).read_bytes())
        return 0
    return 1


sys.exit(main())
