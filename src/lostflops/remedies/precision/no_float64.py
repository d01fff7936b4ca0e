"""No float64 by accident."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="no-float64",
    does="Tensors that became float64 by accident are float32 again.",
    changes={
        "pytorch": Change(
            "Find the tensor that is float64: PyTorch makes them from NumPy arrays by default; "
            "cast it with `.float()` where it is made.",
            snippets=(
                python("-values = torch.from_numpy(array)", "+values = torch.from_numpy(array).float()"),
            ),
        ),
    },
    safety="numerically close",
    safe="Values are rounded to float32, which the rest of the model computes in anyway.",
    seen="No matrix product is listed as fp64.",
    recipe="precision_mix",
    edit="faster:fp64=2",
)
