"""The names of the recipes, known without importing one."""

from __future__ import annotations

import re
from pathlib import Path

RECIPE = re.compile(r"^@recipe\(.*?^def (\w+)\(", re.DOTALL | re.MULTILINE)


def recipe_names(**_: object) -> list[str]:
    """The recipes as the command line spells them, without importing them."""
    folder = Path(__file__).parents[2] / "recipes"
    found = (RECIPE.findall(file.read_text("utf-8")) for file in folder.rglob("*.py"))
    return sorted(name.replace("_", "-") for names in found for name in names)
