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

    def on(self, where: str) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as tensors of zeros on another device; on ``"meta"``, without data."""
        zeros = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=where).zero_()
            for t in self.tensors
        ]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for position, made in self._with([*zeros, *self.numbers], torch.device(where)):
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
            return next(numbers) if self._is_symbol(position, value) else value
        if value.get_device() < 0 and is_number(value):
            number = next(numbers) if self._is_symbol(position, value) else value.item()
            return torch.full((), number, dtype=value.dtype, device=card)
        return next(tensors)

    @property
    def card(self) -> torch.device:
        """The card of the first tensor that lies on one; without such a one, the current card."""
        for tensor in self.tensors:
            if tensor.get_device() >= 0:
                return tensor.device
        return torch.device(device.NAME, device.current_device())

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(_shown, self.tensors))})"


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the host is brought as a number: its value now is what counts."""
    return tensor.is_cpu and tensor.dim() == 0


def by_value(value: Any) -> Any:
    """A value as part of a key: what is equal to it is the same to a program."""
    if isinstance(value, (float, complex)):
        return repr(value)  # nan equals itself, 0.0 and -0.0 differ
    if isinstance(value, torch.device) and value.type == device.NAME:
        return device.index_of(value)
    return value


def _shown(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {tuple(tensor.shape)}"
