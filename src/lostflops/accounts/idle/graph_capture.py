"""The CPU captures a graph."""

from lostflops.accounts.account import LATE, WHILE, Account, Loss

GRAPH_CAPTURE = Account(
    "idle.graph_capture",
    label="graph capture",
    said_by_group=WHILE,
    meaning=LATE
    + "captures a CUDA or HIP graph: what it launches meanwhile is stored in the graph and does not "
    "run.",
    found="Everything on that thread from the call that begins a capture (`cudaStreamBeginCapture`, "
    "`hipStreamBeginCapture`) to the call that ends it.",
    remedy="Captures belong to the start of a job: record later. If they go on, each new input shape is "
    "captured anew: pad to a few shapes.",
    order=10,
    verdict="Held up by graph capture",
    makes_late="graph capture on it makes",
    loss=Loss(
        "graph-capture-inside-step",
        "while a graph is captured",
        0.01,
        none_known="Graphs are captured in the first steps: record later ones.",
    ),
    proven=True,
)
