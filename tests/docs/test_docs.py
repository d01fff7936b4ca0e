"""The documentation says what the code does, and all of it."""

from __future__ import annotations

import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import generate
import pytest

from lostflops import cli
from lostflops.accounts import ACCOUNTS
from lostflops.recipes import accounting, named
from lostflops.tables import TABLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


WRITTEN = [
    page for page in generate.pages() if page.name != "README.md"
]  # tests/docs/test_readme.py has that one


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_is_what_the_code_says_now(page: Path) -> None:
    assert page.read_text() == generate.fresh(page), "run `make docs`"


def test_what_a_page_shows_is_there() -> None:
    for page in generate.pages():
        said = page.read_text()
        assert "There is no file or folder at" not in said and ": not found" not in said, page.name


@pytest.mark.parametrize("name", cli.commands())
def test_every_command_and_every_flag_is_documented(name: str) -> None:
    page = (DOCS / "reference/commands.md").read_text()
    section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/reference/commands.md has no section '{name}'"
    parser = ArgumentParser(add_help=False)
    cli.commands()[name].arguments(parser, ())
    for word in words(parser):
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", section[1]), f"'{word}' of '{name}'"


def words(parser: ArgumentParser) -> Iterator[str]:
    """What can be typed after a command: flags, arguments, and the names of its sub-commands with theirs."""
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        yield from action.option_strings or [str(action.metavar)]
        if isinstance(action, _SubParsersAction):
            for name, below in action.choices.items():
                yield from (name, *words(below))


def test_every_account_of_the_ledger_is_explained() -> None:
    assert set(ACCOUNTS) == set(accounting.ACCOUNTS)
    for account in ACCOUNTS.values():
        for text in (account.meaning, account.found, account.remedy):
            assert text.endswith(".") and "  " not in text


def test_recipes_that_the_accounts_name_exist() -> None:
    for account in ACCOUNTS.values():
        for name in re.findall(r"lostflops recipe ([\w-]+)", account.remedy + account.found):
            named(name)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            there = (page.parent / target) if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
                assert anchor in slugs, f"{page.name}: {target}#{anchor}"


def test_every_table_says_how_to_record_it() -> None:
    for table in TABLES.values():
        assert table.record_with and not table.record_with.endswith(".")


def test_nothing_written_names_a_machine() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*")]:
        if page.is_file():
            assert not re.search(r"/(home|root|work|tmp|Users)/", page.read_text()), page.name
