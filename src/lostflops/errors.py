"""Every error a user can meet; each says what was asked, what is true, and what to do next.

They are raised where the situation is known and caught in one place, the command line's `main`.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class LostflopsError(Exception):
    """An input or a request that cannot be answered. `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


class Refused(RuntimeError):
    """A remedy or a prediction that cannot be had: what is true, as `reason`, and what to do next, as `hint`.

    The model is as it was before the call.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nHint: {hint}")
        self.reason = reason
        self.hint = hint


def revived(kind: str, message: str, hint: str) -> LostflopsError:
    """An error that was raised in another process, of the class that was raised there."""
    made: object = globals().get(kind)
    error = LostflopsError(message, hint)
    if isinstance(made, type) and issubclass(made, LostflopsError):
        error.__class__ = made
    return error


def shown(name: str | Path) -> str:
    """A name from outside, made safe to print on one line: control characters escaped, length bounded."""
    text = str(name)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-70:]}"


def quoted(word: str) -> str:
    """The word for a shell; one with characters that a terminal would act upon as the bytes it is made of."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_spelled, word)) + "'"


def _spelled(character: str) -> str:
    if character.isprintable() and character not in "\\'":
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def as_argument(path: str | Path) -> str:
    """A path as a shell takes it after a command's name, one that begins with a dash included."""
    return quoted(f"./{path}" if str(path).startswith("-") else str(path))


def suggestion(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' when something close is known, else nothing."""
    close = get_close_matches(name.replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


class NothingThere(LostflopsError):
    """A path that does not exist, or a pattern that matches nothing; `instead` says what to give."""

    def __init__(self, path: str | Path, instead: str = "") -> None:
        super().__init__(
            f"There is no file or folder at '{shown(path)}'.",
            instead
            or "give a trace file, a folder of traces, a glob in quotes, or a run made by "
            "`lostflops import`.",
        )


class NoRun(LostflopsError):
    """No path was given, and no run is where recordings go."""

    def __init__(self) -> None:
        super().__init__(
            "There is no recorded run in runs/ or in this folder.",
            "record one with `lostflops record -- python train.py`, or name the traces: "
            "`lostflops why my_traces/`.",
        )


class NoTraces(LostflopsError):
    """A folder without anything that looks like a trace."""

    def __init__(self, path: str | Path, looked_for: Sequence[str]) -> None:
        super().__init__(
            f"'{shown(path)}' holds no trace that lostflops can read.",
            f"it looks for {', '.join(looked_for)}.",
        )


class CannotClean(LostflopsError):
    """A file that nothing can look into to clean it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{shown(path.name)} cannot be cleaned: {why}.")


class RunAmongTraces(LostflopsError):
    """An imported run where traces are wanted."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"'{shown(path)}' is an imported run: it cannot be read together with other paths.",
            "give only that path, or only the traces of one job.",
        )


class NotATrace(LostflopsError):
    """A file that could be opened but is not a trace."""

    def __init__(self, path: Path, why: str, hint: str = "") -> None:
        super().__init__(
            f"{shown(path.name)} is not a trace that lostflops can read: {why}",
            hint
            or "a PyTorch profiler trace is written by `prof.export_chrome_trace(...)` or "
            "`tensorboard_trace_handler`; an Nsight Systems export by `nsys export --type sqlite`.",
        )


class Unreadable(LostflopsError):
    """A file the operating system would not let us read."""

    def __init__(self, path: Path, error: OSError) -> None:
        hint = {
            errno.EACCES: "check its permissions.",
            errno.EPERM: "check its permissions.",
            errno.ENOENT: "check the path.",
            errno.ENAMETOOLONG: "give a shorter path.",
            errno.ELOOP: "its links form a loop: give the path of the file itself.",
        }.get(error.errno or 0, "copy it to a local disk and read the copy.")
        super().__init__(f"{shown(path.name)} could not be read: {error.strerror or error}.", hint)


class Truncated(LostflopsError):
    """A file that ends before it should."""

    def __init__(self, path: Path, where: str, salvage: str = "") -> None:
        super().__init__(
            f"{shown(path.name)} {where}.\n"
            "The process was probably killed while writing, or the copy is incomplete.",
            salvage or "`--salvage` keeps everything up to the last whole event.",
        )


class StepsOverlap(LostflopsError):
    """Steps of a rank that were read overlap, hold no time, or share a number: no ledger could add up."""

    def __init__(self, rank: int, steps: Sequence[int]) -> None:
        listed = ", ".join(map(str, steps[:5])) + (", …" if len(steps) > 5 else "")
        super().__init__(
            f"The steps of rank {rank} overlap or share a number (steps {listed}).",
            "mark each step once, with `prof.step()` or one NVTX range. If each step is marked "
            "once, lostflops "
            "misread the marks: please report the trace.",
        )


class Damaged(LostflopsError):
    """A file whose content is not what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shown(path.name)} is damaged: {shown(why)}.",
            "copy it again from where it was recorded; `--salvage` reads it as it is.",
        )


class NothingRecorded(LostflopsError):
    """A trace in which nothing that a question could be asked about was recorded."""

    def __init__(self, path: Path, what: str, hint: str = "") -> None:
        super().__init__(
            f"{shown(path.name)} holds nothing to analyse: {what}.",
            hint
            or "with a `schedule=`, the profiler records only once `prof.step()` has been called often "
            "enough to reach its active steps.",
        )


class UnknownSchema(LostflopsError):
    """An Nsight Systems export in a layout this version does not know."""

    def __init__(self, path: Path, found: str, known: str) -> None:
        super().__init__(
            f"{shown(path.name)} has export schema {shown(found)}; this lostflops reads schema {known}.",
            "export the .nsys-rep again with an nsys of 2021.5 or later, or use a newer lostflops.",
        )


class NsysNotFound(LostflopsError):
    """A report that only nsys can open, on a machine without nsys."""

    def __init__(self, path: Path, command: str) -> None:
        super().__init__(
            f"{shown(path.name)} is an Nsight Systems report, which only nsys can open, and there is no "
            "nsys on "
            "the PATH.",
            f"where nsys is installed, run `{shown(command)}` and give the .sqlite file.",
        )


class ExportFailed(LostflopsError):
    """A report that the user's nsys could not export."""

    def __init__(self, path: Path, own: str | None, written_by: str | None, command: str) -> None:
        super().__init__(
            f"nsys {own or '(of unknown version)'} could not export {shown(path.name)}, "
            f"written by nsys {written_by or '(version unknown)'}. An older nsys cannot read a newer report.",
            f"run `{shown(command)}` with an nsys at least as new as the report, and give the .sqlite file.",
        )


class NoNsys(LostflopsError):
    """A recording that needs the user's nsys, and none is there."""

    def __init__(self, given: str) -> None:
        there = (
            f"at '{shown(given)}'" if given else "on the PATH, in $CUDA_HOME or where it is usually installed"
        )
        super().__init__(
            f"There is no nsys {there}.",
            "name it with `--nsys /path/to/nsys`, or leave out `--with nsys`: the PyTorch profiler needs no "
            "installation.",
        )


class NsysTooOld(LostflopsError):
    """An nsys without what a recording needs."""

    def __init__(self, path: Path, version: str, why: str) -> None:
        super().__init__(
            f"nsys {version} ({shown(path)}) is too old to record with: {why}.",
            "name a newer one with `--nsys /path/to/nsys`, or leave out `--with nsys`.",
        )


class NsysUnusable(LostflopsError):
    """A program called nsys that does not answer as one."""

    def __init__(self, path: Path, asked: str, said: str) -> None:
        answer = " ".join(said.split())
        super().__init__(
            f"'{shown(path)}' does not answer {asked} as nsys does: "
            + (f"'{shown(answer[-200:])}'." if answer else "it printed nothing."),
            "run it by hand to see what is wrong, or name another one with `--nsys /path/to/nsys`.",
        )


class SameRankTwice(LostflopsError):
    """Two files that both claim to be one rank at the same time."""

    def __init__(self, rank: int, first: str, second: str) -> None:
        super().__init__(
            f"{shown(first)} and {shown(second)} both hold rank {rank} over the same time.",
            "give only the files of one job, or only one of these two.",
        )


class DifferentJobs(LostflopsError):
    """Files that cannot be of one job."""

    def __init__(self, first: str, second: str, why: str) -> None:
        super().__init__(
            f"{shown(first)} and {shown(second)} come from different jobs: {why}.",
            "give the files of one job.",
        )


class RanksMissing(LostflopsError):
    """Fewer files than the job has ranks."""

    def __init__(self, missing: Sequence[int], world_size: int, present: int) -> None:
        listed = ", ".join(map(str, missing[:12])) + (", …" if len(missing) > 12 else "")
        super().__init__(
            f"The job has {world_size} ranks; these files hold {present} of them. Missing: {listed}.",
            "add the missing files, or pass `--allow-missing-ranks`: time spent "
            "waiting for absent ranks is then not reported.",
        )


class NoSuchRecipe(LostflopsError):
    """A recipe name that is not known."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is no recipe called '{shown(name)}'.{suggestion(name, known)}",
            "`lostflops recipes` lists them.",
        )


class NoSuchRemedy(LostflopsError):
    """A remedy name that is not known; `near` are those that may have been meant."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        listed = ", ".join(f"'{one}'" for one in near)
        meant = f" Near {'is' if len(near) == 1 else 'are'} {listed}." if near else ""
        super().__init__(
            f"There is no remedy called '{shown(name)}'.{meant}", "`lostflops remedy` lists them."
        )


class CannotAnswer(LostflopsError):
    """A recipe that was asked for by name and needs what the trace does not have."""

    def __init__(self, recipe: str, reason: str) -> None:
        super().__init__(f"'{shown(recipe)}' cannot be answered on this trace: {shown(reason)}.")


class BadBudget(LostflopsError):
    """A budget that is not what it should be."""

    def __init__(self, path: Path, why: str, hint: str = "") -> None:
        super().__init__(
            f"{shown(path.name)} is not a budget: {shown(why)}{'' if why.endswith('?') else '.'}",
            hint or "docs/comparing.md describes the file.",
        )


class NoBaseline(LostflopsError):
    """A budget that limits what may be lost against another run, and none is named."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{shown(path.name)} limits regressions and names no baseline.",
            'add `baseline = "runs/base"` to its [regression], or pass `--baseline RUN`.',
        )


class BudgetExists(LostflopsError):
    """A first budget that would replace one."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"'{shown(path)}' is there already: `--init` replaces no budget.",
            "name another file with `--budget F`, or print it with `--budget -`.",
        )


class Unheld(Exception):
    """What was checked does not hold, and it was said: only the exit status is left to tell."""


class RowsWithoutCounterpart(LostflopsError):
    """A recipe whose rows of two runs cannot be matched."""

    def __init__(self, recipe: str) -> None:
        super().__init__(
            f"The rows of '{shown(recipe)}' are single events, which have no counterpart in another run.",
            "`--against` compares recipes whose rows have names, such as kernel-summary; "
            "`lostflops diff A B` compares the runs.",
        )


class NothingToExplain(LostflopsError):
    """A name that is no recipe, account, finding or table."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"There is nothing called '{shown(name)}' to explain.{suggestion(name, known)}",
            (
                "name a recipe (`lostflops recipes` lists them), or an account, finding or table as the "
                "page spells it."
            ),
        )


class NoSuchStep(LostflopsError):
    """A step range that selects nothing."""

    def __init__(self, asked: str, present: str) -> None:
        has = f"it has steps {present}" if present else "it has no steps"
        super().__init__(f"This run has no step in '{shown(asked)}'; {has}.")


class BadOption(LostflopsError):
    """An option value that cannot be used."""


class NotSubmitted(LostflopsError):
    """A job that its scheduler does not take."""

    def __init__(self, said: str, again: str) -> None:
        reason = " ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines())
        super().__init__(
            f"sbatch rejected the job: {shown(reason) or 'it gave no reason'}",
            f"`sinfo` lists the partitions. Correct the script and submit it again: `{again}`.",
        )


class BenchFailed(LostflopsError):
    """A measurement that ended before it had measured anything."""

    def __init__(self, said: str) -> None:
        super().__init__(
            f"The measurement failed: {shown(said)}.",
            "set LOSTFLOPS_DEBUG=1 and run it again: that shows all that it printed.",
        )


class BenchLacksTorch(LostflopsError):
    """A measurement that was started with a Python that has no PyTorch."""

    def __init__(self) -> None:
        super().__init__(
            "The measurement needs PyTorch, which this Python does not have.",
            "name the Python that runs your training: `--python /path/to/python`.",
        )


class NewerStore(LostflopsError):
    """A stored run written in a format this version does not know."""

    def __init__(self, path: Path, found: object, known: int) -> None:
        super().__init__(
            f"'{shown(path)}' is a run in store format {shown(str(found))}; "
            f"this lostflops reads format {known}.",
            "import the traces again, or use the version of lostflops that wrote it.",
        )


class DamagedStore(LostflopsError):
    """A stored run whose files do not hold together."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"The run in '{shown(path)}' is damaged: {why}", "delete the folder and import the traces again."
        )


class CannotWrite(LostflopsError):
    """An output that cannot be written."""

    def __init__(self, path: str | Path, error: OSError, hint: str = "") -> None:
        super().__init__(f"'{shown(path)}' could not be written: {_why(error)}.", hint)


def _why(error: OSError) -> str:
    """What the system says; of a folder that was copied in vain, what it says of the first of its files."""
    if error.strerror:
        return error.strerror
    told = re.search(r"\[Errno \d+\] ([^:\"']+)", str(error))
    return told[1] if told else re.sub(r" \(os error \d+\)$", "", str(error))


class OutputExists(LostflopsError):
    """An output folder that already holds something else."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(
            f"'{shown(path)}' already exists and is not a lostflops run.", "choose another --output."
        )


class BadManifest(LostflopsError):
    """A Kubernetes manifest that is not what its kind says it is."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(
            f"The manifest cannot be read: {shown(why)}.",
            hint or "check it with `kubectl apply --dry-run=server`.",
        )


class StoreSilent(LostflopsError):
    """An object store that does not give or take what it should."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"'{shown(url)}' cannot be reached: {shown(why)}.",
            "check credentials, region and endpoint: `aws s3 ls` and `gcloud storage ls` use the same.",
        )


class MissingExtra(LostflopsError):
    """Something that an optional package is needed for."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs a package that is not installed.", f"run `pip install 'lostflops[{extra}]'`."
        )


class ClusterSilent(LostflopsError):
    """A Kubernetes cluster that cannot be asked."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(f"{why}.", hint or "`kubectl get pods` shows whether the cluster answers.")


class BadAnnotations(LostflopsError):
    """A file of functions to annotate that is not what it should be. `where` names the entry."""

    def __init__(self, path: Path, where: str, why: str, hint: str = "") -> None:
        place = f"{where} of {shown(path.name)}" if where else shown(path.name)
        super().__init__(f"{place}: {why}", hint or "docs/capture/annotations.md describes the file.")


class NoSuchModel(LostflopsError):
    """A model name that the planner does not know."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
        super().__init__(
            f"There is no model called '{shown(name)}'." + (f" Did you mean '{close[0]}'?" if close else ""),
            f"choose from {', '.join(known)}, or give the path of a Hugging Face config.json.",
        )


class BadModel(LostflopsError):
    """A config.json that does not describe a model the planner can count."""

    def __init__(self, name: str, why: str, known: Sequence[str] = ()) -> None:
        other = f"of one of these: {', '.join(known)}" if known else "of another model"
        super().__init__(
            f"'{shown(name)}' does not describe a model that can be planned: {shown(why)}.",
            f"give the config.json {other}, or the name of one that is known.",
        )


class NoSuchHardware(LostflopsError):
    """A GPU or link name that the planner does not know."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
        super().__init__(
            f"There is no {what} card called '{shown(name)}'."
            + (f" Did you mean '{close[0]}'?" if close else ""),
            f"choose from {', '.join(known)}, or give the path of a JSON card.",
        )


class BadCard(LostflopsError):
    """A hardware card that cannot be read."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shown(path.name)} is not a hardware card: {shown(why)}.",
            "`lostflops bench links --card FILE` writes a link card; docs/planning.md describes both kinds.",
        )


class ImpossibleLayout(LostflopsError):
    """A way to spread a model over GPUs that does not come out even."""


class BadProfile(LostflopsError):
    """A profile of saved tensors that cannot be planned with."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{shown(path.name)} is not a profile of saved tensors: {shown(why)}.",
            "write one with `json.dump(lostflops.optimize.saved_tensors(model, batch), file)`; "
            "docs/planning.md describes it.",
        )


class NothingExported(LostflopsError):
    """A part of a run in which nothing lies."""

    def __init__(self, hint: str) -> None:
        super().__init__("Nothing of this run lies in the part that was asked for.", hint)


class BrokenTrace(LostflopsError):
    """A trace for another tool that does not keep that tool's rules."""

    def __init__(self, path: str | Path, wrong: int) -> None:
        rules = "rule is" if wrong == 1 else "rules are"
        super().__init__(
            f"'{shown(path)}' would show wrong: {wrong} {rules} broken.",
            "write it again with `lostflops export RUN --output F.prv`.",
        )


class CannotServe(LostflopsError):
    """A run that cannot be shown as a timeline, or a server that cannot start."""
