"""Matrix products of training in 8-bit floating point, through torchao or TransformerEngine.

    converted = optimize.to_fp8(model, recipe="rowwise")
    print(converted.report())       # which layers, in which formats, and why not the others

For speed, not for memory: weights, gradients, optimizer states and what autograd saves stay in the model's
own precision. It pays with `torch.compile` only, which fuses the casts. Whether the loss still falls as it
did is for `optimize.loss_parity` to say. Speed is not verified on a GPU yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from lostflops.optimize.forwards import Forwards
from lostflops.optimize.model_parts import ends_like, is_output_head, named, refuse_wrapped
from lostflops.optimize.refused import Refused, needs
from lostflops.optimize.remedy import AppliedRemedy, TextReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")
ENGINES = ("torchao", "transformer-engine")
MULTIPLE = 16  # of both dimensions of a weight: what FP8 matrix products take
_FORMATS = {
    torch.float8_e4m3fn: "E4M3 (largest 448)",
    torch.float8_e4m3fnuz: "E4M3 (largest 240)",
    torch.float8_e5m2: "E5M2 (largest 57,344)",
    torch.float8_e5m2fnuz: "E5M2 (largest 57,344)",
}


# Those that are dictionaries; `_is_full_backward_hook` says what kind those of the backward are.
_HOOKS = {key for key, value in vars(torch.nn.Module()).items() if "_hooks" in key and value is not None}


def to_fp8(
    model: torch.nn.Module,
    recipe: str = "rowwise",
    engine: str = "torchao",
    emulate: bool | None = None,
    skip: str | Sequence[str] = (),
    small: bool = False,
) -> Fp8:
    """Swaps the model's linear layers for FP8 ones that share their parameters, until `undo()`.

    "tensorwise" has one scale per tensor and is fastest; "rowwise" one per row, more accurate, and E4M3
    throughout; "rowwise_with_gw_hp" leaves the products that make weights' gradients in the model's
    precision. Left out, each with its reason: the output head, dimensions that are no multiples of 16, layers
    too small to gain (`small=True` takes them), layers with hooks of their own, and those that `skip` names
    ("o_proj", "mlp.*"). Refuses when nothing is left. Without FP8 hardware (`emulate=None` finds out) the
    rounding is the same and the speed is not: products run in the model's precision.

    Batch times sequence must be a multiple of 16, too, where gradients of weights are in FP8. Once per
    process, torchao also corrects the compiler's minimum and maximum; that stays.
    """
    refuse_wrapped(
        model,
        *("FSDP1", "FSDP2"),
        breaks="the weights of its layers are parts, which other layers cannot share",
        instead="call optimize.to_fp8 first, then wrap the model",
    )
    if recipe not in RECIPES:
        raise Refused(f"there is no recipe {recipe!r}", f"one of {', '.join(RECIPES)}")
    if engine not in ENGINES:
        raise Refused(f"there is no engine {engine!r}", f"one of {', '.join(ENGINES)}")
    skip = (skip,) if isinstance(skip, str) else skip
    skipped = {name: _why_not(model, name, linear, recipe, skip, small) for name, linear in _linears(model)}
    chosen = [name for name, reason in skipped.items() if reason is None]
    reasons = {name: reason for name, reason in skipped.items() if reason is not None}
    if not chosen:
        why = next((f"'{name}' is {reason}" for name, reason in reasons.items()), "it has no linear layers")
        raise Refused(
            f"no layer is left to run in FP8: {why}",
            "small=True takes small layers, too; FP8 gains where hidden sizes are several thousand",
        )
    if engine == "transformer-engine":
        convert, formats, emulated = _transformer_engine(model, recipe, emulate)
    else:
        convert, formats, emulated = _torchao(
            recipe, hardware_lacks_fp8(model) if emulate is None else emulate
        )
    return Fp8(
        model, chosen, reasons, convert, recipe=recipe, engine=engine, formats=formats, emulated=emulated
    )


class Fp8(AppliedRemedy):
    """A model whose larger linear layers multiply in FP8, until `undo()` or the end of the `with` block."""

    def __init__(
        self,
        model: torch.nn.Module,
        chosen: Sequence[str],
        skipped: dict[str, str],
        convert: Callable[[torch.nn.Module], torch.nn.Module],
        *,
        recipe: str,
        engine: str,
        formats: dict[str, str],
        emulated: str | None,
    ) -> None:
        self.model = model
        self.recipe, self.engine = recipe, engine
        self.formats = formats
        self.converted = tuple(chosen)
        self.skipped = skipped
        self.emulated = emulated
        dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
        self._dtypes = ", ".join(sorted(dtypes))
        wanted = {id(module) for name, module in named(model) if name in set(chosen)}
        self._swaps: list[_Swap] = []
        new: dict[int, torch.nn.Module] = {}
        for _, parent in named(model):
            for name, child in list(parent.named_children()):
                if id(child) in wanted:  # a layer with two parents stays one layer
                    new.setdefault(id(child), convert(child))
                    self._swaps.append(_Swap(parent, name, child, new[id(child)]))
        for swap in self._swaps:
            swap.parent.__dict__["_modules"][swap.name] = swap.converted
        for swap in self._swaps:
            swap.converted.train(swap.original.training)
            # Whoever puts a hook on the layer meanwhile, or takes it away later, finds it on both.
            held = swap.original.__dict__
            swap.converted.__dict__.update({key: held[key] for key in held if key in _HOOKS})

    def _take_back(self) -> None:
        """The layers that were there, with the parameters as trained, and those that were bound anew."""
        for swap in self._swaps:
            swap.original.train(swap.converted.training)
            had, now = (each.__dict__["_parameters"] for each in (swap.original, swap.converted))
            had.update({name: now[name] for name in had if name in now})
            kind = "_is_full_backward_hook"  # of the hooks that both have
            swap.original.__dict__[kind] = swap.converted.__dict__[kind]
        originals = {id(swap.converted): swap.original for swap in self._swaps}
        parents = {id(swap.parent): swap.parent for swap in self._swaps}
        for _, module in named(self.model):  # adapters that came later hold the layers that were there
            parents[id(module)] = module
        for parent in parents.values():
            modules = parent.__dict__["_modules"]
            for name, child in modules.items():
                modules[name] = originals.get(id(child), child)
        self._swaps.clear()

    def report(self) -> TextReport:
        """Which layers run in FP8 and which do not, and what to expect of it."""
        parameters = dict(self.model.named_parameters())
        weights = sum(parameters[f"{name}.weight"].numel() for name in self.converted)
        share = 100 * weights / sum(parameter.numel() for parameter in parameters.values())
        formats = ", ".join(f"{what} {how}" for what, how in self.formats.items())
        how = f"recipe {self.recipe}, by {self.engine}"
        lines = [
            f"FP8            {len(self.converted)} linear layers, {share:.0f} % of the parameters; {how}",
            f"formats        {formats}",
        ]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            more = f" and {len(names) - 2} more" if len(names) > 2 else ""
            lines.append(f"not in FP8     {', '.join(names[:2])}{more}: {reason}")
        if self.emulated:
            lines.append(f"emulated       {self.emulated}: FP8's rounding, none of its speed")
        lines += [
            f"memory         as before: parameters, gradients and saved tensors stay in {self._dtypes}",
            "speed          only with torch.compile, which fuses the casts; not measured",
            "loss           check it: optimize.loss_parity",
        ]
        figures = {
            "recipe": self.recipe,
            "engine": self.engine,
            "formats": self.formats,
            "converted": self.converted,
            "skipped": self.skipped,
            "share_of_parameters": share / 100,
            "emulated": self.emulated,
        }
        return TextReport("FP8", tuple(lines), figures)


@dataclass(frozen=True)
class _Swap:
    parent: torch.nn.Module
    name: str
    original: torch.nn.Module
    converted: torch.nn.Module


def hardware_lacks_fp8(model: torch.nn.Module) -> str | None:
    """Why the device of the model's parameters cannot multiply in FP8; None when it can."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return f"the model lies on {device}, which has no FP8"
    if torch.version.hip:
        name = cast("Any", torch.cuda).get_device_properties(device).gcnArchName
        return None if name.startswith(("gfx94", "gfx95", "gfx12")) else f"{name} has no FP8"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) >= (8, 9):
        return None
    return f"compute capability {major}.{minor} is older than Ada (8.9), which brought FP8"


def _linears(model: torch.nn.Module) -> list[tuple[str, torch.nn.Linear]]:
    return [(name, module) for name, module in named(model) if isinstance(module, torch.nn.Linear)]


def _why_not(
    model: torch.nn.Module, name: str, linear: torch.nn.Linear, recipe: str, skip: Sequence[str], small: bool
) -> str | None:
    outputs, inputs = linear.weight.shape
    if not name:
        return "the model itself: wrap it in a module"
    if any(ends_like(name, pattern) for pattern in skip):
        return "named in `skip`"
    if type(linear) is not torch.nn.Linear:
        return f"a {type(linear).__name__}, whose weight may be used without its forward"
    if is_output_head(model, name, linear):
        return "the output head: its rounding goes straight into the loss"
    if outputs % MULTIPLE or inputs % MULTIPLE:
        return f"{outputs} x {inputs}, and FP8 needs multiples of {MULTIPLE}"
    if not linear.weight.requires_grad:
        return "frozen: in FP8 it would save its input and compute a weight gradient all the same"
    if _own_hooks(linear):
        return "with hooks or a forward of its own, which the swap would lose"
    if not small and _too_small(outputs, inputs, recipe):
        return f"small ({outputs} x {inputs}): casts cost more than the product gains"
    return None


def _own_hooks(module: torch.nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in module.__dict__ or any(module.__dict__[kind] for kind in kinds)


def _too_small(outputs: int, inputs: int, recipe: str) -> bool:
    # Below these, torchao's published timings on an H100 show no gain: more kernels to scale rows need more.
    if recipe == "tensorwise":
        return inputs <= 4096 and outputs <= 1024
    return outputs <= 2048 or inputs <= 1024 or (outputs <= 4096 and inputs <= 2048)


_Converter = tuple["Callable[[torch.nn.Module], torch.nn.Module]", dict[str, str], "str | None"]


def _torchao(recipe: str, emulate: str | bool | None) -> _Converter:
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise needs("torchao", error) from error
    from dataclasses import replace

    config: Any = replace(cast("Any", Float8LinearConfig).from_recipe_name(recipe), emulate=bool(emulate))
    formats = {
        what: _FORMATS[getattr(config, f"cast_config_{where}").target_dtype]
        for what, where in (("activations", "input"), ("weights", "weight"), ("gradients", "grad_output"))
    }
    if config.cast_config_input_for_grad_weight.scaling_type.value == "disabled":
        formats["products for weights' gradients"] = "in the model's precision"

    def convert(linear: torch.nn.Module) -> torch.nn.Module:
        made = cast("Any", convert_to_float8_training)(linear, config=config)
        Forwards().replace(made, _outside_of_inference_mode)
        return made

    return convert, formats, ("as asked" if emulate is True else emulate or None)


def _outside_of_inference_mode(
    forward: Callable[..., Any], module: torch.nn.Module, /, *args: Any, **kwargs: Any
) -> Any:
    """In inference mode torch takes no operator apart, and torchao's rows of scales know few operators."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return forward(module, *args, **kwargs)
    with torch.inference_mode(False), torch.no_grad():
        return forward(module, *args, **kwargs)


def _transformer_engine(model: torch.nn.Module, recipe: str, emulate: bool | None) -> _Converter:
    """Its linear layers, each in an FP8 context of its own. Not verified on a GPU yet."""
    try:
        import transformer_engine.pytorch as te  # pyright: ignore[reportMissingImports]
        from transformer_engine.common import recipe as te_recipes  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except ImportError as error:
        raise needs("transformer-engine", error) from error
    if recipe != "tensorwise":
        raise Refused(
            f"TransformerEngine has no recipe {recipe!r}", 'recipe="tensorwise", or engine="torchao"'
        )
    if lacking := hardware_lacks_fp8(model):
        raise Refused(f"TransformerEngine needs FP8 hardware: {lacking}", 'engine="torchao" can emulate it')
    if emulate:
        raise Refused("TransformerEngine does not emulate FP8", 'engine="torchao"')
    library, settings = cast("Any", te), cast("Any", te_recipes)
    scaling = settings.Float8CurrentScaling(fp8_format=settings.Format.HYBRID)

    def around(forward: Callable[..., Any], module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        with library.fp8_autocast(enabled=True, fp8_recipe=scaling):
            return forward(module, *args, **kwargs)

    def convert(linear: torch.nn.Module) -> torch.nn.Module:
        given = cast("torch.nn.Linear", linear)
        made: torch.nn.Module = library.Linear(
            given.in_features,
            given.out_features,
            bias=cast("Any", given.bias) is not None,
            params_dtype=given.weight.dtype,
            device=given.weight.device,
        )
        # The same parameters, so that an optimizer that was made before keeps its hold of them.
        made.__dict__["_parameters"].update(given.__dict__["_parameters"])
        Forwards().replace(made, around)
        return made

    formats = {
        "activations": _FORMATS[torch.float8_e4m3fn],
        "weights": _FORMATS[torch.float8_e4m3fn],
        "gradients": _FORMATS[torch.float8_e5m2],
    }
    return convert, formats, None
