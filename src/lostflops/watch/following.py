"""Looks at a job again and again, shows it in the terminal, and tells Prometheus and the user's command."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lostflops.errors import BadOption, CannotWrite, shown
from lostflops.machine.monitor import openmetrics
from lostflops.units import three_figures
from lostflops.watch.alarm import Alarm
from lostflops.watch.job import Happened, Now, Watch
from lostflops.watch.metrics import exposition
from lostflops.watch.page import clock, line, page

STATUS_EVERY = 60.0  # s, where no terminal shows the page


@dataclass(frozen=True)
class Watching:
    """How to watch."""

    run: Path
    interval: float
    once: bool = False
    until_slow: bool = False
    when_slow: str | None = None
    listen: tuple[str, int] | None = None
    textfile: Path | None = None


class Follower:
    """Follows one run."""

    def __init__(self, asked: Watching, console: Console) -> None:
        self.asked, self.console = asked, console
        self.watch = Watch(asked.run)
        self.alarm = None if asked.when_slow is None else Alarm(asked.when_slow, asked.run)
        self._lock = threading.Lock()
        self._said = float("-inf")
        self._live: Live | None = None

    def follow(self) -> bool:
        """Look until the job ends, or once. Whether something is wrong when the looking ends.

        Raises BadOption where the address cannot be used, CannotWrite for the text file.
        """
        if self.asked.listen is not None:
            self._serve(*self.asked.listen)
        try:
            if self.asked.once:
                self._look()
                with self._lock:
                    news = self.watch.finish()
                self._alarm(news)
                self.console.print(self._page(), soft_wrap=True)
            elif self.console.is_terminal:
                with Live(console=self.console, auto_refresh=False) as live:
                    self._live = live
                    self._until_the_end()
            else:
                self._until_the_end()
                self.console.print(self._page(), soft_wrap=True)
            self._ended(wait=self.asked.once or self.watch.ended)
        finally:
            if self.alarm is not None:
                self.alarm.stop()
        return self.wrong

    @property
    def wrong(self) -> bool:
        """A rank or the job is slower than at first, one of them hangs, or the loss is not a number."""
        watch = self.watch
        return bool(watch.slow() or watch.silent) or watch.stalled or watch.bad_loss is not None

    def _until_the_end(self) -> None:
        due = time.monotonic()
        while True:
            self._look()
            if self.watch.ended or (self.asked.until_slow and self.wrong):
                return
            due = max(due + self.asked.interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))

    def _look(self) -> None:
        with self._lock:
            news = self.watch.look()
        self._alarm(news)
        self._ended(wait=False)
        if self.asked.textfile is not None:
            try:
                openmetrics.replace(self.asked.textfile, self._metrics(textfile=True))
            except OSError as error:
                raise CannotWrite(self.asked.textfile, error) from error
        self._show(news)

    def _alarm(self, news: list[Happened]) -> None:
        if self.alarm is not None:
            # Of what lies before the first look, only what still holds.
            slow = self.watch.slow()
            bad = [one for one in news if one.kind not in ("rank", "job") or one.rank in slow]
            self._say(self.alarm.tell(bad))

    def _show(self, news: list[Happened]) -> None:
        if self.asked.once:
            return
        if self._live is not None:
            self._live.update(self._page(), refresh=True)
            return
        for one in news:
            self.console.print(line(one), highlight=False, markup=False)
        now = time.monotonic()
        if now - self._said >= STATUS_EVERY:
            self._said = now
            self.console.print(status(self._now()), highlight=False, markup=False)

    def _ended(self, wait: bool) -> None:
        if self.alarm is not None:
            self._say(self.alarm.ended(wait))

    def _say(self, text: str | None) -> None:
        if text is None:
            return
        if self._live is not None:
            with self._lock:
                self.watch.happened.append(Happened("command", text, time.time_ns()))
        else:
            print(text, file=sys.stderr, flush=True)

    def _now(self) -> Now:
        with self._lock:
            return self.watch.now()

    def _page(self) -> Text:
        return page(self._now(), str(self.asked.run), self.watch.happened)

    def _metrics(self, textfile: bool = False) -> str:
        with self._lock:
            now, counts = self.watch.now(), dict(self.watch.counts)
            age = self.watch.age()
        return exposition(now, counts, age, textfile=textfile)

    def _serve(self, address: str, port: int) -> None:
        text: Callable[[], str] = self._metrics
        try:
            used = openmetrics.serve(address, port, text)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise BadOption(f"{address}:{port} cannot be used: {why}.", "choose another --port.") from error
        print(f"metrics: {openmetrics.url(address, used)}", file=sys.stderr, flush=True)


def status(now: Now) -> str:
    """The job in one line."""
    at = clock(time.time_ns())
    if now.step is None:
        return f"{at}  no rank has finished a step yet"
    loss = f", loss {now.loss[1]:.4g}" if now.loss else ""
    spread = max((rank.longer for rank in now.ranks), default=0)
    slowest = f", slowest rank +{100 * spread:.1f} %" if len(now.ranks) > 1 else ""
    return f"{at}  step {now.step:,}, {three_figures(now.steps_per_second)} steps/s{slowest}{loss}"


def asked_run(text: str) -> Path:
    """The folder of a run. Raises BadOption for a file."""
    run = Path(text)
    if run.is_file():
        raise BadOption(f"'{shown(run)}' is a file.", "give the folder that `lostflops record` made.")
    return run
