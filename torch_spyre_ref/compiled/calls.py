"""One call of an op: its arguments, and all that a program for it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from torch_spyre_ref import _bridge, device
from torch_spyre_ref.compiled.ops import Op

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


class Call:
    """Arguments as a kernel gets them.

    ``tensors`` and ``numbers`` are what a launch brings; ``key`` is the rest: dtypes, sizes,
    strides, devices, and every value that is no patched number. Addresses are nowhere in it.
    """

    __slots__ = ("args", "key", "kwargs", "numbers", "op", "tensors")

    def __init__(self, op: Op, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.op, self.args, self.kwargs = op, args, kwargs
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[int | float] = []
        key: list[Any] = [
            op,
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
        ]
        done = _bridge.take_plain(args, op.patched, self.tensors, self.numbers, key)
        for value, patched in zip(args[done:], op.patched[done:]):  # noqa: B905 (the rest default)
            self._read(value, patched, key)
        for name, value in kwargs.items():
            key.append(name)
            self._read(value, op.patched[op.positions[name]], key)
        if self.numbers and op.may_refuse_numbers:
            key += [number for number in self.numbers if not self._fits(number)]
        self.key = tuple(key)

    def _read(self, value: Any, patched: bool, key: list[Any]) -> None:
        kind = type(value)
        if kind in PLAIN or isinstance(value, torch.Tensor):
            where = value.get_device()
            if where < 0 and is_number(value):
                self._read_host_number(value, patched, key)
            else:
                self.tensors.append(value)
                key.append((value.dtype, value.shape, value.stride(), where))
        elif patched and (kind is float or kind is int):
            self.numbers.append(value)
            key.append(kind)
        elif kind is list or kind is tuple:
            key.append(len(value))
            for item in value:
                if isinstance(item, torch.Tensor):
                    self.tensors.append(item)
                    key.append((item.dtype, item.shape, item.stride(), item.get_device()))
                else:
                    key.append((type(item), by_value(item)))
        else:
            key.append((kind, by_value(value)))

    def _read_host_number(self, value: torch.Tensor, patched: bool, key: list[Any]) -> None:
        number = value.item()
        if patched and type(number) in (int, float):
            self.numbers.append(number)
            key.append(value.dtype)
        else:
            key.append((value.dtype, by_value(number)))

    def _fits(self, number: float) -> bool:
        """Whether every tensor could hold a number; not 0, by which whole ones are not divided."""
        return all(_is_in_range(number, dtype) for dtype in {t.dtype for t in self.tensors})

    def fix(self, numbers: Sequence[int]) -> None:
        """From now on these numbers are part of the op's keys: their values were asked for."""
        positions = [place for place, value in self.arguments() if self._is_symbol(place, value)]
        for number in numbers:
            self.op.patched[positions[number]] = False

    def _is_symbol(self, position: int, value: Any) -> bool:
        if not self.op.patched[position]:
            return False
        if isinstance(value, torch.Tensor):
            return is_number(value) and type(value.item()) in (int, float)
        return type(value) in (int, float)

    def arguments(self) -> Iterator[tuple[int, Any]]:
        """Every argument that was given, with its place in the schema."""
        yield from enumerate(self.args)
        for name, value in self.kwargs.items():
            yield self.op.positions[name], value

    def argument(self, position: int) -> Any:
        """The argument at a place of the schema, as given."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs[self.op.arguments[position].name]

    def targets(self) -> list[torch.Tensor]:
        """The tensors that the op stores into."""
        return [self.argument(position) for position in self.op.written]

    def filled(self, inputs: Sequence[Any]) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """The arguments with ``inputs`` in place of tensors and numbers; targets by themselves.

        ``inputs`` are tensors first, then numbers. An ``out=`` argument is only among the targets.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        targets = {}
        for position, made in self._with(inputs, self.card):
            if position in self.op.written:
                targets[position] = made
            if position not in self.op.written or self.op.is_inplace:
                self._append(position, made, args, kwargs)
        return args, kwargs, [targets[position] for position in self.op.written]

    def on(self, where: str, one_element: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as tensors of ones on another device; on ``"meta"``, without data.

        With ``one_element`` they have one dimension, if any, and one element, if any.
        """
        ones = [
            torch.ones([min(t.numel(), 1)] * (t.dim() > 0), dtype=t.dtype, device=where)
            if one_element
            else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=where).fill_(1)
            for t in self.tensors
        ]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for position, made in self._with([*ones, *self.numbers], torch.device(where)):
            self._append(position, made, args, kwargs)
        return args, kwargs

    def _append(self, position: int, made: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if position < len(self.args):
            args.append(made)
        else:
            kwargs[self.op.arguments[position].name] = made

    def _with(self, inputs: Sequence[Any], card: torch.device) -> Iterator[tuple[int, Any]]:
        """Each argument that was given, with ``inputs`` in place of tensors and numbers."""
        tensors, numbers = iter(inputs[: len(self.tensors)]), iter(inputs[len(self.tensors) :])
        for position, value in self.arguments():
            yield position, self._fill(position, value, tensors, numbers, card)

    def _fill(
        self,
        position: int,
        value: Any,
        tensors: Iterator[Any],
        numbers: Iterator[Any],
        card: torch.device,
    ) -> Any:
        if isinstance(value, (list, tuple)):
            return [next(tensors) if isinstance(item, torch.Tensor) else item for item in value]
        if not isinstance(value, torch.Tensor):
            number = next(numbers) if self._is_symbol(position, value) else value
            if self.op.takes_bare_numbers or not self.is_bare(position, value):
                return number
            return torch.full((), number, dtype=self.dtype_of(value), device=card)
        if value.get_device() < 0 and is_number(value):
            number = next(numbers) if self._is_symbol(position, value) else value.item()
            return torch.full((), number, dtype=value.dtype, device=card)
        return next(tensors)

    def is_bare(self, position: int, value: Any) -> bool:
        """Whether a value is a number where the schema says that a tensor is."""
        wants_tensor = str(self.op.arguments[position].type) in ("Tensor", "Optional[Tensor]")
        return wants_tensor and isinstance(value, (bool, int, float, complex))

    def as_tensor(self, number: complex) -> torch.Tensor:
        """A 0-dim tensor of the host that promotes as a bare number does."""
        return torch.tensor(number, device="cpu").to(self.dtype_of(number))

    def dtype_of(self, number: complex) -> torch.dtype:
        """The dtype in which a bare number promotes as it does, and keeps its digits if it can."""
        if isinstance(number, bool):
            return torch.bool
        many = [tensor for tensor in self.tensors if tensor.dim()]
        if isinstance(number, float) and any(tensor.is_floating_point() for tensor in many):
            return torch.float64
        for tensor in self.tensors:
            return torch.result_type(tensor, number)
        return torch.tensor(number, device="cpu").dtype

    @property
    def card(self) -> torch.device:
        """The card of the first tensor that lies on one; without such a one, the current card."""
        for tensor in self.tensors:
            if tensor.get_device() >= 0:
                return tensor.device
        return torch.device(device.NAME, device.current_device())

    def __repr__(self) -> str:
        given = [self._shown(position, value) for position, value in self.arguments()]
        for i, name in enumerate(self.kwargs, len(self.args)):
            given[i] = f"{name}={given[i]}"
        return f"{self.op}({', '.join(given)})"

    def _shown(self, position: int, value: Any) -> str:
        """What the key has of an argument: a number that each launch brings is only its kind."""
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._shown(position, item) for item in value)}]"
        number = value
        if isinstance(value, torch.Tensor):
            if value.get_device() >= 0 or not is_number(value):
                return _described(value)
            number = value.item()
        if not self._is_symbol(position, value):
            return str(number)
        is_particular = self.op.may_refuse_numbers and not self._fits(number)
        return str(number) if is_particular else type(number).__name__


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the host is brought as a number: its value now is what counts."""
    return tensor.is_cpu and tensor.dim() == 0


def _is_in_range(number: float, dtype: torch.dtype) -> bool:
    if dtype.is_complex or dtype is torch.bool:
        return False
    if dtype.is_floating_point:
        return abs(number) <= torch.finfo(dtype).max
    return 0 < number <= torch.iinfo(dtype).max


def by_value(value: Any) -> Any:
    """A value as part of a key: what is equal to it is the same to a program."""
    if isinstance(value, (float, complex)):
        return repr(value)  # nan equals itself, 0.0 and -0.0 differ
    if isinstance(value, torch.device) and value.type == device.NAME:
        return device.index_of(value)
    return value


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)}"
