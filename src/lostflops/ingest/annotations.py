"""Ranges of `lostflops.annotate` and `lostflops.range`, whose domain stands in their text.

PyTorch's own ranges have no domains. So the text is `lostflops:DOMAIN:TEXT`, and this takes it apart.
"""

from __future__ import annotations

import polars as pl

from lostflops.tables import NAME

PREFIX = "lostflops:"
MARKED = r"(?s)^lostflops:([^:]*):(.*)$"


def by_domain(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges with the domains and texts that were meant."""
    texts = ranges["name"].unique().cast(pl.String)
    texts = texts.filter(texts.str.contains(MARKED).fill_null(False))
    if texts.is_empty():
        return ranges
    meant = pl.DataFrame(
        {
            "name": texts.cast(NAME),
            "_domain": texts.str.extract(MARKED, 1).replace("", None).cast(NAME),
            "_text": texts.str.extract(MARKED, 2).cast(NAME),
        }
    )
    return (
        ranges.join(meant, on="name", how="left", maintain_order="left")
        .with_columns(domain=pl.coalesce("_domain", "domain"), name=pl.coalesce("_text", "name"))
        .drop("_domain", "_text")
    )
