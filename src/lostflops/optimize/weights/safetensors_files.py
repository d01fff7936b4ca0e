"""A model's weights in .safetensors files: where each lies, read on demand, and a model that has none yet.

    with optimize.without_weights():
        model = LlamaForCausalLM(config)  # parameters on the meta device: shapes, no memory
    optimize.stream_weights(model, "20 GiB", files="path/to/checkpoint")

A parameter becomes a view of its file, mapped into memory: it has the right values whenever somebody looks,
and takes memory only where somebody does. Streaming does not look: it reads the file into memory of its own.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from lostflops.optimize.memory_layout import view_of
from lostflops.optimize.refused import Refused

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
LONGEST_HEADER = 100_000_000  # bytes, as the format has it
AT_ONCE = 1 << 30  # bytes of one read
INDEX = "model.safetensors.index.json"
SHOWN = 4  # names in an error


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    file: File
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int  # byte in the file
    nbytes: int


class File:
    """An open file, mapped into memory as a whole, and read where asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._mapped: Any = None

    def read(self, first: int, target: torch.Tensor) -> None:
        """Bytes from the file into uint8[n] of host memory. On any thread."""
        room, done = memoryview(cast("Any", target.numpy())), 0
        while done < len(room):
            got = os.preadv(self.number, [room[done : done + AT_ONCE]], first + done)
            if not got:
                raise Refused(
                    f"{self.path} has become shorter than it was", "leave the files in place meanwhile"
                )
            done += got

    def view(self, stored: StoredTensor) -> torch.Tensor:
        """Mapped: takes memory where it is looked at. Writing to it does not change the file."""
        if not stored.nbytes:
            return torch.empty(stored.shape, dtype=stored.dtype)
        if self._mapped is None:
            size = os.fstat(self.number).st_size
            self._mapped = cast("Any", torch.UntypedStorage).from_file(str(self.path), False, size)
        part = self._mapped[stored.first : stored.first + stored.nbytes]
        strides = [math.prod(stored.shape[after + 1 :]) for after in range(len(stored.shape))]
        return cast("Any", torch.empty(0, dtype=stored.dtype)).set_(part, 0, stored.shape, strides)

    def close(self) -> None:
        self._mapped = None
        if self.number >= 0:
            os.close(self.number)
        self.number = -1


class WeightFiles:
    """The tensors of a checkpoint by name: one file, several, or a folder with or without an index."""

    def __init__(self, given: str | os.PathLike[str]) -> None:
        self.files: list[File] = []
        self.tensors: dict[str, StoredTensor] = {}
        try:
            for path, wanted in _paths(Path(given)):
                self._open(path, wanted)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            file.close()

    def _open(self, path: Path, wanted: set[str] | None) -> None:
        try:
            file = File(path)
        except OSError as error:
            raise Refused(
                f"{path} cannot be read: {error.strerror}", "download the checkpoint again"
            ) from error
        self.files.append(file)
        found = dict(_header(file))
        if wanted is not None and (missing := sorted(wanted - found.keys())):
            raise Refused(
                f"{path.name} does not have {_some(missing)}, which the index says it has",
                "download the checkpoint again: its files are not of one version",
            )
        for name, stored in found.items():
            if name in self.tensors:
                other = self.tensors[name].file.path.name
                raise Refused(f"'{name}' is in {other} and in {path.name}", "give one of the files")
            self.tensors[name] = stored


def _paths(given: Path) -> list[tuple[Path, set[str] | None]]:
    """The files, and which names an index expects in each."""
    if given.is_file() and not given.name.endswith(".json"):
        return [(given, None)]
    index = given if given.is_file() else given / INDEX
    if index.is_file():
        try:
            names: Any = json.loads(index.read_text())["weight_map"]
            files: dict[str, set[str]] = {}
            for name, file in names.items():
                files.setdefault(file, set()).add(name)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Refused(
                f"{index} is no index of weights: {error}", "download the checkpoint again"
            ) from error
        for file in files:
            if Path(file).name != file:
                raise Refused(f"{index} names {file!r}, which is not a file beside it", "mend the index")
        return [(index.parent / file, wanted) for file, wanted in sorted(files.items())]
    found = sorted(given.glob("*.safetensors")) if given.is_dir() else []
    if not found:
        raise Refused(
            f"there is no .safetensors file at {given}",
            "give a file, or a folder with model.safetensors or an index",
        )
    return [(path, None) for path in found]


def _header(file: File) -> Iterator[tuple[str, StoredTensor]]:
    """What the file says that it has, held against its length."""
    size = os.fstat(file.number).st_size
    length = int.from_bytes(os.pread(file.number, 8, 0), "little")
    broken = f"{file.path} is no safetensors file, or ends in the middle"
    again = "download it again"
    if size < 8 or length > min(LONGEST_HEADER, size - 8):
        raise Refused(broken, again)
    try:
        header: Any = json.loads(os.pread(file.number, length, 8))
        for name, told in header.items():
            if name == "__metadata__":
                continue
            begin, end = (int(each) for each in told["data_offsets"])
            shape = tuple(int(each) for each in told["shape"])
            dtype = DTYPES.get(told["dtype"])
            if dtype is None:
                raise Refused(
                    f"'{name}' in {file.path.name} is of dtype {told['dtype']}, which is not known here",
                    f"known are {', '.join(DTYPES)}",
                )
            if not 0 <= begin <= end <= size - 8 - length or min(shape, default=0) < 0:
                raise Refused(broken, again)
            if end - begin != math.prod(shape) * dtype.itemsize:
                raise Refused(f"'{name}' in {file.path.name} has another size than its shape", again)
            yield name, StoredTensor(file, dtype, shape, 8 + length + begin, end - begin)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(broken, again) from error


@contextmanager
def without_weights() -> Generator[None]:
    """Models that are made inside have their parameters on the meta device. Buffers have their values: those
    that are computed, such as rotary frequencies, are in no file."""
    plain = torch.nn.Module.register_parameter

    def register(module: torch.nn.Module, name: str, parameter: Any) -> None:
        plain(module, name, parameter)
        if parameter is not None and parameter.device.type != "meta":  # a tied one is there already
            kind = cast("Any", type(parameter))
            empty = kind(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            cast("Any", module)._parameters[name] = empty

    torch.nn.Module.register_parameter = register  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = plain


class FileModel:
    """A model whose parameters on the meta device are views of files, until `undo`."""

    def __init__(self, model: torch.nn.Module, given: str | os.PathLike[str]) -> None:
        self.files = WeightFiles(given)
        self._replaced: list[tuple[Any, str, torch.Tensor]] = []
        self.stored: dict[int, StoredTensor] = {}  # by the id of a parameter that is a view
        self._versions: dict[int, int] = {}
        try:
            self._fill(model)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """The model has no weights again."""
        for places, key, tensor in reversed(self._replaced):
            places[key] = tensor
        self._replaced.clear()
        self.stored.clear()
        self.files.close()

    def read(self, tensor: torch.Tensor, seen: torch.Tensor, target: torch.Tensor) -> int:
        """The bytes of a weight, `seen` in memory, into uint8[n]. How many came from its file: none, if it
        was written to."""
        stored = self.stored.get(id(tensor))
        if stored is None or tensor._version != self._versions[id(tensor)]:
            view_of(target, 0, seen.dtype, seen.shape, seen.stride()).copy_(seen.detach())
            return 0
        stored.file.read(stored.first, target)
        return stored.nbytes

    def changed(self, tensor: torch.Tensor) -> None:
        """It was written to in a way that torch does not count: the file no longer has its values."""
        self._versions[id(tensor)] = -1

    def _fill(self, model: torch.nn.Module) -> None:
        places: dict[int, list[tuple[Any, str, str]]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for prefix, module in cast("Any", model).named_modules(remove_duplicate=False):
            for members in (module._parameters, module._buffers):
                for key, tensor in members.items():
                    if tensor is not None:
                        name = f"{prefix}.{key}" if prefix else key
                        places.setdefault(id(tensor), []).append((members, key, name))
                        tensors[id(tensor)] = tensor
        known = {name for each in places.values() for _, _, name in each}
        self._check_names(places, tensors, known)
        for identity, found in places.items():
            tensor = tensors[identity]
            names = [name for _, _, name in found if name in self.files.tensors]
            if tensor.device.type == "meta":
                self._take(tensor, found, names)

    def _check_names(
        self, places: Mapping[int, Any], tensors: Mapping[int, torch.Tensor], known: set[str]
    ) -> None:
        stored = self.files.tensors
        missing = [
            found[0][2]
            for identity, found in places.items()
            if tensors[identity].device.type == "meta" and not any(name in stored for _, _, name in found)
        ]
        extra = sorted(stored.keys() - known)
        if missing:
            near = f"; the files have {_some(extra)}, which it does not" if extra else ""
            raise Refused(
                f"the files do not have {_some(missing)} of the model{near}",
                "tie them (model.tie_weights()), make buffers outside of the meta device with "
                "optimize.without_weights(), or give the files of this model",
            )
        if extra:
            raise Refused(
                f"the files have {_some(extra)}, and the model does not", "give the files of this model"
            )

    def _take(self, tensor: torch.Tensor, found: list[tuple[Any, str, str]], names: list[str]) -> None:
        first = self.files.tensors[names[0]]
        for name in names:
            stored = self.files.tensors[name]
            if stored.shape != tuple(tensor.shape):
                raise Refused(
                    f"'{name}' is {list(stored.shape)} in the files and {list(tensor.shape)} in the model",
                    "make the model with the checkpoint's own configuration",
                )
            if name != names[0] and not _equal(first, stored):
                raise Refused(
                    f"'{names[0]}' and '{name}' are one weight in the model, and differ in the files",
                    "untie them in the model's configuration (tie_word_embeddings=False)",
                )
        made = first.file.view(first)
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad and made.is_floating_point())
        for members, key, _ in {
            (id(members), key): (members, key, name) for members, key, name in found
        }.values():
            self._replaced.append((members, key, members[key]))
            members[key] = made
        self.stored[id(made)] = first
        self._versions[id(made)] = made._version


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """A part at a time, so that no memory is needed."""
    if (one.dtype, one.nbytes) != (other.dtype, other.nbytes):
        return False
    for first in range(0, one.nbytes, 1 << 22):
        length = min(1 << 22, one.nbytes - first)
        parts = [os.pread(each.file.number, length, each.first + first) for each in (one, other)]
        if parts[0] != parts[1]:
            return False
    return True


def _some(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
