"""LoRA through PEFT, with the ways closed in which it needs more memory than it saves.

    adapters = optimize.lora(model, rank=16, targets="attention")
    print(adapters.report())             # what trains, what is frozen, what autograd saves in addition
    ...                                  # train `model`, or `adapters.model`, PEFT's
    merged = adapters.merge(lambda: model(**batch).logits)

Adapters shrink gradients and optimizer states. What they do to saved activations depends on two defaults:
PEFT's fp32 adapters save a copy of their own of every input, and dropout saves a mask and a dropped copy per
adapter. With both on all seven projections of a Llama, more is saved than by full fine-tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from lostflops.optimize.amounts import written
from lostflops.optimize.model_parts import ends_like, is_output_head, named, refuse_wrapped
from lostflops.optimize.refused import Refused, needs
from lostflops.optimize.remedy import AppliedRemedy, TextReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Projections that read one tensor, and those whose input a frozen layer saves anyway (attention's output).
_TOGETHER = (frozenset({"q_proj", "k_proj", "v_proj"}), frozenset({"gate_proj", "up_proj"}))
_SAVED_ANYWAY = frozenset({"o_proj"})
_LOST = 0.5  # of the adapters' effect may go missing in a merge


def lora(
    model: torch.nn.Module,
    rank: int = 16,
    targets: str | Sequence[str] = "attention",
    alpha: float | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Adapters:
    """Freezes the model and puts trainable low-rank adapters beside its linear layers, in place.

    `targets` is "attention" (the projections of attention), "all-linear" (all but the output head), or names
    of modules ("q_proj", "mlp.*"). `alpha` is twice the rank unless given. `dtype` is that of the adapters:
    the base's unless given; `torch.float32` on a 16-bit base is PEFT's default, and its price is in the
    report. Checkpointing needs nothing more: `optimize.checkpoint` runs with a frozen embedding as it is.

    Refuses a model with adapters or gradients, targets that are not there, and those whose forward nobody
    calls (inside torch's MultiheadAttention), where adapters would silently do nothing. Needs peft.
    """
    refuse_wrapped(
        model,
        *("DDP", "FSDP1", "FSDP2"),
        breaks="the ranks would not exchange the gradients of adapters that come afterwards",
        instead="call optimize.lora first, then wrap its `model`",
    )
    try:
        import peft
    except ImportError as error:
        raise needs("peft", error) from error
    if rank < 1 or not 0 <= dropout < 1:
        raise Refused(f"rank={rank} and dropout={dropout} make no adapters", "rank >= 1 and 0 <= dropout < 1")
    if isinstance(model, peft.PeftModel) or hasattr(model, "peft_config"):
        raise Refused("the model has adapters already", "unload() or merge() them first")
    if held := next((name for name, weight in model.named_parameters() if weight.grad is not None), None):
        raise Refused(
            f"'{held}' has a gradient, by which an optimizer would go on to change it, frozen or not",
            "optimizer.zero_grad(set_to_none=True) first",
        )
    chosen = _chosen(model, targets)
    base = {module.weight.dtype for module in chosen.values()}
    if len(base) > 1 or not next(iter(base)).is_floating_point:
        kinds = ", ".join(sorted(str(kind) for kind in base))
        raise Refused(f"the targets' weights are {kinds}", "adapt layers of one floating-point dtype")
    traces = _Traces(model)
    names = {name.rpartition(".")[2] for name in chosen}
    # PEFT matches ends of names. Short ones make a readable adapter_config.json, where they select the same.
    same = {name for name, _ in named(model) if name.rpartition(".")[2] in names} == set(chosen)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=cast("Any", 2 * rank if alpha is None else alpha),
        lora_dropout=dropout,
        target_modules=sorted(names) if same else sorted(chosen),
    )
    adapted: Any = cast("Any", peft).get_peft_model(model, config, autocast_adapter_dtype=False)
    kind = next(iter(base)) if dtype is None else dtype
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(kind)
    traces.adapted()
    return Adapters(model, adapted, traces, chosen, rank, dropout)


class Adapters(AppliedRemedy):
    """A frozen model with adapters. `model` is PEFT's; the model that was given has them, too, until
    `undo()`."""

    def __init__(
        self,
        base: torch.nn.Module,
        model: Any,
        traces: _Traces,
        chosen: dict[str, Any],
        rank: int,
        dropout: float,
    ) -> None:
        self.base, self.model = base, model
        self.targets = tuple(chosen)
        self.rank, self.dropout = rank, dropout
        self._widths = {name: _width(module) for name, module in chosen.items()}
        self._traces = traces
        self._told: TextReport | None = None  # since the adapters are gone

    @property
    def base_dtype(self) -> torch.dtype:
        """Of the weights that are adapted, now: the model may have been cast."""
        return cast("Any", self.base.get_submodule(self.targets[0])).weight.dtype

    @property
    def dtype(self) -> torch.dtype:
        """Of the adapters, now."""
        return next(weight.dtype for weight in self.model.parameters() if weight.requires_grad)

    def _take_back(self) -> None:
        """The model as it was: no adapters, and trainable what was trainable. What the adapters learnt is
        lost. What PEFT itself has merged is taken out of the weights again, but for rounding."""
        if self._traces.is_adapted():
            self._told = self.report()
            self._unmerge()
            # PEFT would leave its trained copies of whole modules in their places (`modules_to_save`).
            copied = [
                (module, name, child.original_module)
                for _, module in named(self.model)
                for name, child in module.named_children()
                if hasattr(child, "original_module") and hasattr(child, "modules_to_save")
            ]
            self.model.unload()
            for module, name, original in copied:
                module.__dict__["_modules"][name] = original
        self._traces.remove()

    def _unmerge(self) -> None:
        for _, module in named(self.model):
            layer = cast("Any", module)
            if getattr(layer, "merged_adapters", None):
                layer.unmerge()

    def saved_bytes_per_token(self, fused_dropout: bool | None = None) -> int:
        """What autograd saves for the adapters beyond the frozen model, predicted, for one token.

        Exact for Llama's names and fused attention, at most that for other models, where more inputs may be
        shared. Dropout is fused on a GPU, with a mask of a byte, and not on a CPU.
        """
        fused = next(self.base.parameters()).device.type == "cuda" if fused_dropout is None else fused_dropout
        return saved_bytes_per_token(
            self._widths, self.rank, self.dropout, self.base_dtype.itemsize, self.dtype.itemsize, fused
        )

    def report(self) -> TextReport:
        """What trains, what is frozen, and what the adapters add to what autograd saves."""
        if self._told is not None:
            return self._told
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        frozen = [parameter for parameter in self.model.parameters() if not parameter.requires_grad]
        count, rest = (sum(parameter.numel() for parameter in some) for some in (trained, frozen))
        kind, base = (str(one).removeprefix("torch.") for one in (self.dtype, self.base_dtype))
        cheapest = saved_bytes_per_token(
            self._widths, self.rank, 0.0, self.base_dtype.itemsize, self.base_dtype.itemsize, True
        )
        more = self.saved_bytes_per_token()
        share, size = 100 * count / (count + rest), written(sum(parameter.nbytes for parameter in trained))
        left = written(sum(parameter.nbytes for parameter in frozen))
        lines = [
            f"adapters       rank {self.rank} on {len(self.targets)} modules",
            f"trainable      {count:,} parameters ({share:.2g} %) in {kind}: {size}",
            f"frozen         {rest:,} parameters, {left}: no gradients, no optimizer states",
            f"saved          {written(more)} per token more than the frozen model alone, predicted",
        ]
        if more > cheapest:
            causes = [f"dropout={self.dropout}"] if self.dropout else []
            causes += [f"{kind} adapters on a {base} base"] if self.dtype != self.base_dtype else []
            lines.append(
                f"WARNING        {written(more - cheapest)} of that per token is for {' and '.join(causes)};"
                f" dropout=0 in {base} saves {written(cheapest)}"
            )
        figures = {
            "rank": self.rank,
            "dropout": self.dropout,
            "targets": self.targets,
            "trainable_parameters": count,
            "frozen_parameters": rest,
            "dtype": kind,
            "base_dtype": base,
            "predicted_saved_bytes_per_token": more,
            "least_saved_bytes_per_token": cheapest,
        }
        return TextReport("LoRA", tuple(lines), figures)

    def merge(self, check: Callable[[], torch.Tensor], tolerance: float | None = None) -> torch.nn.Module:
        """Adds the adapters to the weights, takes them away, and returns the model that was given.

        `check()` runs the model and returns its output (logits). It is compared, without gradients and
        dropout, before and after: the difference must be below `tolerance` of the output, as norms (eight
        roundings of the base's dtype unless given), and below half of what the adapters change. Otherwise the
        weights are put back to the bit, and the merge refused: 16-bit weights can round small adapters away.

        A weight that another module has, too, such as a head tied to the embedding, is refused as well.
        """
        if not self._traces.is_adapted():
            raise Refused("the adapters are gone", "merge before undo(), and once")
        self._refuse_shared()
        if lost := sorted(set(self.model.peft_config) - set(self.model.active_adapters)):
            raise Refused(
                f"'{lost[0]}' is among the adapters and not active: it would be in no weight, and gone",
                f"adapters.model.delete_adapter({lost[0]!r}), or activate it: set_adapter of its base_model",
            )
        self._unmerge()  # what PEFT itself has merged: no weight is to count twice
        limit = 8 * torch.finfo(self.base_dtype).eps if tolerance is None else tolerance
        # Those of adapters that the user added, too, in other modules.
        layers = [cast("Any", layer) for _, layer in named(self.base) if hasattr(layer, "merged_adapters")]
        bases = [weight for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)]
        weights = [weight.detach().to("cpu", copy=True) for weight in bases]
        was_training = {module for _, module in named(self.model) if module.training}
        self.model.eval()
        merged = False
        try:
            with torch.no_grad():
                wanted = check()
                with self.model.disable_adapter():
                    without = check()
                merged = True
                self.model.merge_adapter(safe_merge=True)
                found = check()
            error, effect = _apart(found, wanted), _apart(without, wanted)
            if not (error <= limit and error <= _LOST * effect):
                raise Refused(
                    f"merged, the output is {error:.2g} of itself away (limit {limit:.2g}), and the adapters"
                    f" change it by {effect:.2g}",
                    "merge in fp32 (model.float() first), or keep the adapters beside the weights",
                )
        except BaseException:
            if merged:
                self.model.unmerge_adapter()
            for base, weight in zip(bases, weights, strict=True):
                base.data.copy_(weight)  # taking away what was added rounds once more
            raise
        finally:
            for _, module in named(self.model):
                module.training = module in was_training
        self._told = self.report()
        self.model.unload()  # the weights are merged; this takes away what is beside them
        self._traces.remove()
        return self.base

    def _refuse_shared(self) -> None:
        """Raise where merging would change what another module computes."""
        owners: dict[int, list[str]] = {}
        for name, module in named(self.base):
            for weight in module.parameters(recurse=False):
                owners.setdefault(weight.untyped_storage().data_ptr(), []).append(name)
        for target in self.targets:
            layer = cast("Any", self.base.get_submodule(target)).base_layer
            place = layer.weight.untyped_storage().data_ptr()
            names = [name.removesuffix(".base_layer") for name in owners.get(place, ())]
            others = [name for name in names if place and name != target]  # 0: no memory of its own now
            if others:
                raise Refused(
                    f"'{target}' has its weight in common with '{others[0]}', which a merge would change too",
                    "keep the adapters beside the weights, or give the layer a weight of its own first",
                )


def saved_bytes_per_token(
    widths: dict[str, int], rank: int, dropout: float, base_size: int, size: int, fused: bool
) -> int:
    """Bytes that autograd saves for adapters in addition to a frozen model, for one token.

    `widths` maps the adapted modules' names to their input widths; sizes are bytes per element of the base
    and of the adapters. Without dropout and in the base's dtype an adapter needs its input, which those that
    read the same tensor share; in another dtype each has its own copy. Dropout saves the dropped copy and a
    mask, of one byte where it is fused and of an element where it is not. All save the `rank` outputs of A.
    """
    total, inputs = 0, set[tuple[str, Any]]()
    for name, width in widths.items():
        parent, _, last = name.rpartition(".")
        total += rank * size
        if dropout:
            total += width * (size + (1 if fused else size))
        elif size != base_size:
            total += width * size
        elif last not in _SAVED_ANYWAY:
            group = next((together for together in _TOGETHER if last in together), last)
            if (parent, group) not in inputs:
                inputs.add((parent, group))
                total += width * size
    return total


class _Traces:
    """What PEFT leaves behind: who is trainable, hooks on the embedding, marks on the model.

    Only what came with the adapters is taken away again, not what others did to the model meanwhile.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        # By their places, too: a state dict that is loaded with assign=True brings other parameters.
        self._trainable = [
            (module.__dict__["_parameters"], key, parameter, parameter.requires_grad)
            for _, module in named(model)
            for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        ]
        self._before = {id(module): (set(module.__dict__), _hooks(module)) for _, module in named(model)}
        self._left: list[tuple[torch.nn.Module, set[str], set[int]]] = []

    def adapted(self) -> None:
        """The adapters are there now."""
        for _, module in named(self._model):
            if id(module) in self._before:
                attributes, hooks = self._before[id(module)]
                self._left.append((module, set(module.__dict__) - attributes, _hooks(module) - hooks))

    def is_adapted(self) -> bool:
        return hasattr(self._model, "peft_config")

    def remove(self) -> None:
        for module, attributes, hooks in self._left:
            for name in attributes:
                module.__dict__.pop(name, None)
            for key in hooks:
                module.__dict__["_forward_hooks"].pop(key, None)
        for held, key, parameter, trainable in self._trainable:
            parameter.requires_grad_(trainable)
            now = held.get(key)
            if now is not None and now is not parameter and now.is_floating_point():
                now.requires_grad_(trainable)


def _hooks(module: torch.nn.Module) -> set[int]:
    return set(module.__dict__["_forward_hooks"])


def _chosen(model: torch.nn.Module, targets: str | Sequence[str]) -> dict[str, Any]:
    """The linear layers that are to be adapted, by name."""
    modules = named(model)
    linear = {name: module for name, module in modules if _width(module) and name}
    called = {
        name: module
        for name, module in linear.items()
        if not isinstance(_parent(model, name), torch.nn.MultiheadAttention)
    }
    if targets == "all-linear":
        found = {name: module for name, module in called.items() if not is_output_head(model, name, module)}
    elif targets == "attention":
        found = {name: module for name, module in called.items() if _in_attention(model, name)}
    else:
        wanted = [targets] if isinstance(targets, str) else list(targets)
        found: dict[str, torch.nn.Module] = {}
        for pattern in wanted:
            matching = {name: module for name, module in linear.items() if ends_like(name, pattern)}
            if not matching:
                names = ", ".join(sorted({name.rpartition(".")[2] for name in linear})[:12])
                raise Refused(f"there is no linear layer '{pattern}' to adapt", f"there are {names}")
            if uncalled := next((name for name in matching if name not in called), None):
                raise Refused(
                    f"'{uncalled}' is used by its weight, not by its forward: an adapter would do nothing",
                    "adapt other layers, or an attention that calls its projections",
                )
            found |= matching
    if not found:
        raise Refused(
            f"there are no linear layers for targets={targets!r}",
            'name modules: targets=["q_proj", "v_proj"]; torch\'s MultiheadAttention cannot be adapted',
        )
    return found


def _width(module: torch.nn.Module) -> int:
    """Of the input of a linear layer; 0 for anything else."""
    if isinstance(module, torch.nn.Linear):
        return module.in_features
    return (
        int(cast("Any", module).nx) if type(module).__name__ == "Conv1D" else 0
    )  # transformers', as in GPT-2


def _in_attention(model: torch.nn.Module, name: str) -> bool:
    parts = name.split(".")[:-1]
    for depth in range(1, len(parts) + 1):
        kind = type(model.get_submodule(".".join(parts[:depth]))).__name__
        if "attention" in kind.lower() or "attn" in parts[depth - 1] or parts[depth - 1] == "attention":
            return True
    return False


def _parent(model: torch.nn.Module, name: str) -> torch.nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _apart(one: Any, other: Any) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())
