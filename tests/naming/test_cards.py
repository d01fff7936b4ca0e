"""Cards by their drivers' names: each is the right one, or none."""

from __future__ import annotations

import pytest

from lostflops.naming.cards import CARDS, TERA, bandwidth, card, peak
from lostflops.naming.gpus import matrix_units
from lostflops.plan.hardware import GPUS

# As drivers say them, with the dense peak in 16 bits of the vendor's data sheet.
SAID = {
    "Tesla V100-SXM2-16GB": ("v100", 125),
    "Tesla V100-SXM3-32GB": ("v100", 125),
    "Tesla V100-DGXS-32GB": ("v100", 125),
    "Tesla V100-PCIE-16GB": ("v100-pcie", 112),
    "Tesla T4": ("t4", 65),
    "A100-SXM4-80GB": ("a100", 312),
    "NVIDIA A100-SXM4-80GB": ("a100", 312),
    "NVIDIA A100-SXM4-40GB": ("a100-others", 312),
    "NVIDIA A100 80GB PCIe": ("a100-others", 312),
    "NVIDIA A800-SXM4-80GB": ("a800", 312),
    "NVIDIA A10": ("a10", 125),
    "NVIDIA H100 80GB HBM3": ("h100", 989.4),
    "NVIDIA H100 PCIe": ("h100-pcie", 756),
    "NVIDIA H100 NVL": ("h100-nvl", 835.5),
    "NVIDIA H800": ("h800", 989.4),
    "NVIDIA H20": ("h20", 148),
    "NVIDIA H20-3e": ("h20-3e", 148),
    "NVIDIA H200": ("h200", 989.4),
    "NVIDIA H200 NVL": ("h200-nvl", 835.5),
    "NVIDIA GH200 480GB": ("gh200", 989.4),
    "NVIDIA GH200 144G HBM3e": ("gh200-144gb", 989.4),
    "NVIDIA B200": ("b200", 2250),
    "NVIDIA B300 SXM6 AC": ("b300", 2250),
    "NVIDIA GB200": ("gb200", 2500),
    "NVIDIA GB300": ("gb300", 2500),
    "NVIDIA L4": ("l4", 121),
    "NVIDIA L40S": ("l40s", 362),
    "NVIDIA GeForce RTX 4090": ("rtx-4090", 165.2),
    "AMD Instinct MI210": ("mi210", 181),
    "AMD Instinct MI250X": ("mi250x", 191.5),
    "AMD Instinct MI300A": ("mi300a", 980.6),
    "AMD Instinct MI300X": ("mi300x", 1307.4),
    "AMD Instinct MI300X VF": ("mi300x", 1307.4),
    "AMD Instinct MI325X": ("mi325x", 1307.4),
    "AMD Instinct MI350X": ("mi350x", 2306.9),
    "AMD Instinct MI355X": ("mi355x", 2516.6),
}


@pytest.mark.parametrize("driver", SAID)
def test_a_name_of_a_driver_gives_its_card_and_no_other(driver: str) -> None:
    name, tera = SAID[driver]
    found = card(driver)
    assert found is CARDS[name] and peak(driver, "fp16") == tera * TERA
    assert peak(driver, "bf16") == (None if name in ("v100", "v100-pcie", "t4") else tera * TERA)


def test_every_card_has_a_name_that_a_driver_says() -> None:
    assert {name for name, _ in SAID.values()} | {"h100-96gb"} == set(CARDS)


@pytest.mark.parametrize(
    "driver",
    [
        "",
        "NVIDIA H100",  # of one form or another
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA A100-SXM-64GB",  # made for one site, with more units
        "NVIDIA A10G",
        "NVIDIA A10-24Q",
        "NVIDIA L40",
        "NVIDIA L20",
        "NVIDIA H800 PCIe",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI300X HF",
        "AMD Instinct MI308X",
        "AMD Instinct MI250X / MI250",
        "a card of tomorrow",
    ],
)
def test_a_name_like_a_known_one_gives_no_card(driver: str) -> None:
    assert card(driver) is None and peak(driver, "bf16") is None


@pytest.mark.parametrize(
    ("driver", "tera"),
    [
        ("NVIDIA GH200 480GB", 4.0),
        ("NVIDIA GH200 144G HBM3e", 4.9),
        ("NVIDIA H20", 4.0),
        ("NVIDIA H20-3e", 4.8),
        ("NVIDIA H200", 4.8),
    ],
)
def test_newer_memory_on_the_same_units_is_faster(driver: str, tera: float) -> None:
    assert bandwidth(driver) == tera * TERA


def test_a_precision_that_is_not_known_has_no_peak() -> None:
    assert peak("NVIDIA H100 80GB HBM3", "tf32") == 494.7 * TERA
    assert peak("NVIDIA H100 80GB HBM3", "int8") is None
    assert peak("NVIDIA H800", "fp64") == 1 * TERA, "what export limits took"


def test_the_planner_has_its_cards_from_there() -> None:
    for name, gpu in GPUS.items():
        known = CARDS[name]
        assert gpu.peak == known.tera["bf16"] * TERA and gpu.memory == (known.mib or 0) << 20
        assert gpu.memory_bandwidth == (known.bandwidth or 0) * TERA


@pytest.mark.parametrize("driver", SAID)
def test_peaks_of_narrow_formats_are_those_of_formats_that_matrix_units_take(driver: str) -> None:
    """AMD's units take tf32, and frameworks have no switch for it there."""
    tera = SAID[driver] and CARDS[SAID[driver][0]].tera
    formats = {"fp16", "bf16", "fp8"} if driver.startswith("AMD") else {"fp16", "bf16", "tf32", "fp8"}
    assert set(tera) & formats == matrix_units(driver)


def test_peaks_are_dense() -> None:
    """Half the bits, twice the products: where a sheet's sparse number slips in, the ratio breaks."""
    for known in CARDS.values():
        if "fp8" in known.tera:
            assert known.tera["fp8"] == pytest.approx(2 * known.tera["bf16"], rel=0.02), known.name
        if "tf32" in known.tera:
            assert known.tera["tf32"] == pytest.approx(known.tera["bf16"] / 2, rel=0.02), known.name
