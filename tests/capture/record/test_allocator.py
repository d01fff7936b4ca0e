"""Which allocator takes glibc's place in the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lostflops.capture.record.injected.lostflops_recorder.windows.window import allocator


def test_an_allocator_is_told_where_it_was_preloaded_and_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 7 /usr/lib/libtcmalloc_minimal.so.4.5.10\n")
    for preloaded, told in (
        ("/usr/lib/libtcmalloc_minimal.so.4", {"tcmalloc": "4"}),
        ("/opt/of mine.so:libtcmalloc.so", {"tcmalloc": "0"}),
        ("/usr/lib/libjemalloc.so.2", {}),  # which is not there
        ("", {}),
    ):
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        assert allocator(str(maps)) == told
    monkeypatch.setenv("LD_PRELOAD", "libtcmalloc.so")
    assert allocator(str(tmp_path / "none")) == {}
