"""Does the core work with the lowest declared versions, and does every version give the same answers?

    python tests/versions/environments.py [--only-answers] [--python 3.13 ...]

Makes two environments below `.venv-lowest/` for every Python that pyproject.toml names and this machine has:
one with the lowest declared versions, one with those of `constraints.txt`. Runs the tests of the core in the
former; property tests draw fewer cases, and what a file may cost is tried on the first Python alone. In both
it compares the hashes of `answers.py`, in the former once more with every order turned round that Polars does
not promise.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".venv-lowest"
PYPROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "constraints.txt"
PACKAGE = tomllib.loads(PYPROJECT.read_text())["project"]
EXTRAS = ("fast", "monitor", "k8s")  # those without torch
TOOLS = ("pytest==9.2.0", "pytest-xdist==3.8.0", "hypothesis==6.170.15", "zstandard==0.25.0")
# What reads, tells and answers: neither a GPU's libraries nor torch, a scheduler or a browser.
MOST_DRAWN = 20
# How much memory and time a file may take: a matter of the libraries, which are the same on every Python.
COSTS = "tests/ingest/test_costly_files.py"
CORE = ("ingest", "intervals", "naming", "recipes", "store", "causes", "remedies", "privacy")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only-answers", action="store_true", help="compare answers, run no tests")
    parser.add_argument(
        "--python", nargs="+", choices=declared(), default=declared(), help="with these alone"
    )
    given = parser.parse_args(words)
    found = {version: python for version in given.python if (python := interpreter(version))}
    absent = [version for version in given.python if version not in found]
    failed: list[str] = []
    answers: dict[str, set[str]] = {}
    kinds = [(version, kind) for version in found for kind in ("lowest", "newest")]
    with ThreadPoolExecutor(2) as two:  # pip waits for files, mostly
        environments = dict(zip(kinds, two.map(lambda k: environment(*k, found[k[0]]), kinds), strict=True))
    for version in found:
        for kind in ("lowest", "newest"):
            began, name = time.monotonic(), f"Python {version}, {kind} versions"
            made = environments[version, kind]
            answers[name] = asked(made)
            said = f"{len(answers[name])} answers"
            if kind == "lowest":
                answers[f"{name}, orders turned round"] = asked(made, "--ties-reversed")
                if not given.only_answers:
                    passed, said = tested(made, costs=version == next(iter(found)))
                    failed += [] if passed else [f"{name}: tests"]
            print(f"{name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    first = next(iter(answers.values()), set())
    for name, those in answers.items():
        if not those:
            failed.append(f"{name}: no answers")
        for line in sorted(those ^ first):
            failed.append(f"{name}: {'+' if line in those else '-'} {line}")
    if absent:
        print(f"Not on this machine, so not tried: Python {', '.join(absent)}.")
    if not found:
        failed.append("none of the Pythons of pyproject.toml is on this machine")
    print("\n".join(failed) or f"The same {len(first)} answers in {len(answers)} environments.")
    return bool(failed)


def declared() -> list[str]:
    """The Pythons that the package says it is for."""
    return re.findall(r"Python :: (3\.\d+)", "\n".join(PACKAGE["classifiers"]))


def interpreter(version: str) -> str | None:
    """One of that version which runs: on the path, or pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    of_pyenv = map(str, sorted(root.glob(f"versions/{version}.*/bin/python")))
    for python in filter(None, [sys.executable, shutil.which(f"python{version}"), *of_pyenv]):
        probe = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([python, "-c", probe], capture_output=True, text=True)
        if said.stdout.strip() == version:
            return python
    return None


def required() -> list[str]:
    """Each requirement of the package and its extras."""
    extras = PACKAGE["optional-dependencies"]
    return [*PACKAGE["dependencies"], *(need for extra in EXTRAS for need in extras[extra])]


def lowest() -> list[str]:
    """The same at the lowest version that each admits."""
    unbounded = [need for need in required() if ">=" not in need]
    assert not unbounded, f"no lowest version is declared: {unbounded}"
    return [need.replace(">=", "==", 1) for need in required()]


def environment(version: str, kind: str, python: str) -> Path:
    """The Python of an environment with those versions and this tree, made where it is absent or old."""
    folder = HOME / f"{version}-{kind}"
    made, done = folder / "bin" / "python", folder / ".installed"
    wants = f"{PYPROJECT.read_text()}{CONSTRAINTS.read_text()}{TOOLS}"
    if done.is_file() and done.read_text() == wants:
        return made
    subprocess.run([python, "-m", "venv", "--without-pip", "--clear", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made, "install", "--quiet"]
    exact = lowest() if kind == "lowest" else [f"--constraint={CONSTRAINTS}", *required()]
    subprocess.run([*pip, *exact, *TOOLS], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "this_tree.pth").write_text(f"{ROOT / 'src'}\n")
    done.write_text(wants)
    return made


def asked(python: Path, *options: str) -> set[str]:
    """The lines of `answers.py` in that environment; none where it fails, which is then on the screen."""
    said = subprocess.run(
        [python, Path(__file__).with_name("answers.py"), *options], stdout=subprocess.PIPE, text=True
    )
    return set(said.stdout.splitlines()) if said.returncode == 0 else set()


def tested(python: Path, *, costs: bool) -> tuple[bool, str]:
    """Whether the tests of the core pass there, and pytest's last line."""
    folders = [f"tests/{name}" for name in CORE]
    workers = ["--numprocesses", "auto", "--maxprocesses", "8", "--dist", "worksteal"]
    few = os.environ | {"LOSTFLOPS_MOST_DRAWN": str(MOST_DRAWN), "PYTHONPATH": str(Path(__file__).parent)}
    leave = [] if costs else [f"--ignore={COSTS}"]
    said = subprocess.run(
        [python, "-m", "pytest", "-p", "fewer_draws", *workers, *leave, *folders],
        cwd=ROOT,
        env=few,
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = said.stdout.strip().splitlines() or ["pytest said nothing"]
    if said.returncode:
        print(said.stdout)
    return said.returncode == 0, lines[-1].strip("= ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
