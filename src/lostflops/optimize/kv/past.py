"""The keys and values inside a Hugging Face `Cache`, or a plain list of them; and a `Cache` made of such.

Only what is known token by token can be cut at a prefix and joined again: layers that grow with the dialogue,
with a sliding window or without, and static ones. What holds a running state, or numbers in a code of its
own, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch

from lostflops.optimize.kv.rows import LayerShape, dtype_named
from lostflops.optimize.refused import Refused, needs


@dataclass(frozen=True)
class KeysAndValues:
    """Of one layer: [1, heads, tokens, size] each. Row 0 is token `first`, which a window may have left
    behind.
    """

    shape: LayerShape
    keys: torch.Tensor
    values: torch.Tensor
    first: int = 0


def layers_of(past: Any) -> tuple[list[KeysAndValues | None], int]:
    """Its layers, None for those that keep nothing, and how many tokens it has seen."""
    if isinstance(past, Sequence):
        return _plain(cast("Sequence[Any]", past))
    classes = _classes()
    if not isinstance(past, classes["Cache"]):
        raise Refused(
            f"a {type(past).__name__} is no cache of keys and values",
            "give the past_key_values of a Hugging Face model, or a list of (keys, values)",
        )
    if isinstance(past, classes["EncoderDecoderCache"]):
        raise Refused("an encoder-decoder cache belongs to its encoder's input", "use a decoder-only model")
    if getattr(past, "offloading", False):
        raise Refused(
            "this cache is in host memory already (offloading=True)",
            "generate without cache_implementation='offloaded'",
        )
    found = [_layer(number, layer) for number, layer in enumerate(past.layers)]
    lengths = {length for _, length in found if length is not None}
    if len(lengths) > 1:
        raise Refused(
            f"the layers have seen {', '.join(str(n) for n in sorted(lengths))} tokens",
            "suspend a cache when its model's forward has ended",
        )
    layers = [layer for layer, _ in found]
    _one_dialogue(layers)
    windows = sorted({layer.shape.window for layer in layers if layer and layer.shape.window})
    if len(windows) > 1:
        raise Refused(
            f"the layers have sliding windows of {' and '.join(map(str, windows))} tokens",
            "only models whose windows are equal are handled",
        )
    return layers, next(iter(lengths), 0)


def cache_of(layers: Sequence[tuple[LayerShape, torch.Tensor, torch.Tensor] | None], tokens: int) -> Any:
    """A DynamicCache of these keys and values, as if its model had just seen the tokens."""
    classes = _classes()
    made: list[Any] = []
    for layer in layers:
        if layer is None:
            made.append(classes["DummyLayer"]())
            continue
        shape, keys, values = layer
        one = classes["Window"](shape.window) if shape.window else classes["Full"]()
        one.lazy_initialization(keys, values)
        one.keys, one.values = keys, values
        if shape.window:
            one.cumulative_length = tokens
        made.append(one)
    past = classes["DynamicCache"]()
    past.layers = made
    past.layer_class_to_replicate = None
    return past


def when_touched(past: Any, number: int, arrive: Callable[[], bool]) -> None:
    """Calls `arrive` before anyone gets the keys or values of a layer that `cache_of` made, until it says
    True.
    """
    past.layers[number].arrive = arrive


def empty(model: Any) -> Any:
    """A cache for a dialogue that begins."""
    return _classes()["DynamicCache"](config=model.config)


def _layer(number: int, layer: Any) -> tuple[KeysAndValues | None, int | None]:
    """One layer and the tokens that it has seen; None for one that keeps nothing."""
    classes = _classes()
    kind = cast("type[Any]", type(layer))
    if kind is classes["DummyLayer"]:
        return None, None
    if kind not in (
        classes["DynamicLayer"],
        classes["DynamicSlidingWindowLayer"],
        classes["StaticLayer"],
        classes["Full"],
        classes["Window"],
    ):
        why = {
            "Quantized": "holds numbers in a code of its own, and rounds anew when it grows",
            "LinearAttention": "holds a running state, which cannot be cut at a token",
            "StaticSliding": "writes its window in a circle",
            "Indexed": "holds an index besides keys and values",
        }
        reason = next((text for part, text in why.items() if part in kind.__name__), "is not known here")
        raise Refused(
            f"layer {number} of this cache is a {kind.__name__}, which {reason}",
            "generate with the default cache (a DynamicCache of the model's own precision)",
        )
    if not layer.is_initialized:
        return None, 0
    seen = int(layer.get_seq_length())
    keys, values = cast("torch.Tensor", layer.keys), cast("torch.Tensor", layer.values)
    if kind is classes["StaticLayer"]:
        keys, values = keys[:, :, :seen], values[:, :, :seen]
    window = int(getattr(layer, "sliding_window", 0)) if layer.is_sliding else 0
    return KeysAndValues(_shape(keys, values, window), keys, values, seen - keys.shape[2]), seen


def _plain(past: Sequence[Any]) -> tuple[list[KeysAndValues | None], int]:
    layers: list[KeysAndValues | None] = []
    for number, pair in enumerate(past):
        if not (
            isinstance(pair, Sequence)
            and len(cast("Sequence[Any]", pair)) == 2
            and all(isinstance(t, torch.Tensor) and t.ndim == 4 for t in cast("Sequence[Any]", pair))
        ):
            raise Refused(
                f"layer {number} of the list is no pair of keys and values",
                "give (keys, values) per layer, each [1, heads, tokens, size]",
            )
        keys, values = cast("Sequence[torch.Tensor]", pair)
        layers.append(KeysAndValues(_shape(keys, values), keys, values))
    _one_dialogue(layers)
    lengths = {layer.keys.shape[2] for layer in layers if layer}
    if len(lengths) > 1:
        raise Refused(f"the layers have {sorted(lengths)} tokens", "give all layers of one moment")
    return layers, next(iter(lengths), 0)


def _shape(keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> LayerShape:
    if keys.dtype != values.dtype or keys.shape[:3] != values.shape[:3]:
        raise Refused(
            f"keys {list(keys.shape)} {keys.dtype} and values {list(values.shape)} {values.dtype} do not "
            "belong together",
            "give keys and values of the same heads, tokens and dtype",
        )
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3], dtype_named(keys.dtype), window)


def _one_dialogue(layers: Sequence[KeysAndValues | None]) -> None:
    for number, layer in enumerate(layers):
        if layer and layer.keys.shape[0] != 1:
            raise Refused(
                f"layer {number} holds a batch of {layer.keys.shape[0]} dialogues",
                "suspend one at a time, as a list of (k[i : i + 1], v[i : i + 1]) without its padding",
            )
    places = {layer.keys.device for layer in layers if layer}
    if len(places) > 1:
        raise Refused(
            f"the layers lie on {' and '.join(sorted(map(str, places)))}", "use one DialogueCache per device"
        )


def as_plain(layer: Any, kind: Any, own: Sequence[str]) -> Any:
    """For pickle and copy: a layer of transformers whose keys and values are there, without what is `own`."""
    held = cast("dict[str, Any]", vars(layer))
    state = {key: value for key, value in held.items() if key not in own}
    return _plain_layer, (kind, state | {"keys": layer.keys, "values": layer.values})


def _plain_layer(kind: Any, state: dict[str, Any]) -> Any:
    layer = kind.__new__(kind)
    layer.__dict__.update(state)
    return layer


@cache
def _classes() -> dict[str, Any]:
    """Those of transformers, and two of ours: layers whose contents may still be on their way."""
    try:
        from transformers import cache_utils
    except ImportError as error:
        raise needs("transformers", error) from error
    names = (
        "Cache",
        "DynamicCache",
        "EncoderDecoderCache",
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "StaticLayer",
        "DummyLayer",
    )
    try:
        found: dict[str, Any] = {name: getattr(cache_utils, name) for name in names}
    except AttributeError as error:
        raise Refused(
            f"this transformers has no cache layers ({error})", "pip install 'transformers>=5'"
        ) from error

    def arriving(name: str) -> Any:
        # By properties, since generate, beams and the user read keys and values in ways of their own.
        def get(self: Any) -> Any:
            if self.arrive is not None and self.arrive():
                self.arrive = None
            return self.__dict__.get(f"_{name}")

        def put(self: Any, tensor: Any) -> None:
            self.__dict__[f"_{name}"] = tensor

        return property(get, put)

    def reduce(self: Any) -> Any:
        return as_plain(self, type(self).__base__, ("arrive", "_keys", "_values"))

    both: dict[str, Any] = {"arrive": None, "keys": arriving("keys"), "values": arriving("values")}
    both["__reduce__"] = reduce
    found["Full"] = type("ResumedLayer", (found["DynamicLayer"],), dict(both))
    found["Window"] = type("ResumedSlidingWindowLayer", (found["DynamicSlidingWindowLayer"],), dict(both))
    return found
