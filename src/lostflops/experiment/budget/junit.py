"""A budget's outcomes for continuous integration: JUnit's XML, and annotations of GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from lostflops.report.words.safe import one_line

if TYPE_CHECKING:
    from .holding import Checked

SUITE = "lostflops check"


def junit(found: Checked) -> bytes:
    """One test case a limit: a failure where it is broken, an error where it cannot be checked."""
    broken = sum(one.status == "broken" for one in found.outcomes)
    unknown = sum(one.status == "unknown" for one in found.outcomes)
    counts = {"tests": f"{len(found.outcomes)}", "failures": f"{broken}", "errors": f"{unknown}"}
    top = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    suite = ElementTree.SubElement(top, "testsuite", {"name": one_line(found.limits.path.name), **counts})
    for one in found.outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"lostflops.{one.section}", "name": one_line(one.name)}
        )
        sentence = one_line(one.sentence)
        if one.status == "held":
            ElementTree.SubElement(case, "system-out").text = sentence
        else:
            kind = "failure" if one.status == "broken" else "error"
            ElementTree.SubElement(case, kind, {"message": sentence}).text = sentence
    ElementTree.indent(top)
    return ElementTree.tostring(top, encoding="utf-8", xml_declaration=True) + b"\n"


def github(found: Checked, path: str) -> Iterator[str]:
    """A line that GitHub's workflows show at the budget's own line, for each limit that failed."""
    for one in found.failed:
        where = f"file={_property(path)},line={one.line},title={_property(f'lostflops: {one.name}')}"
        yield f"::error {where}::{_message(one.sentence)}"


def _message(text: str) -> str:
    return one_line(text.replace("%", "%25"))


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
