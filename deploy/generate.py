"""Writes the Helm chart from what `lostflops launch k8s manifests` prints: `python deploy/generate.py`.

`tests/capture/kubernetes/test_chart.py` fails when the chart is not what this would write.
"""

from __future__ import annotations

from pathlib import Path

from lostflops.capture.kubernetes.objects import chart

CHART = Path(__file__).parent / "helm" / "lostflops"


def main() -> None:
    for name, text in chart().items():
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
