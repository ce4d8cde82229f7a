"""The ops that draw random numbers: the card's Philox stream, turned into values on the host.

Each kernel reserves the words it needs from the device's generator, makes the values as a CPU
tensor (`emulator.philox`, chunk by chunk) and copies them to the card. The card's random unit
follows the same formulas and gives the same numbers, so what is drawn here is no fallback.
What has no elementwise formula (``multinomial``, ``poisson``, …) runs in the CPU fallback instead,
on a CPU generator that is seeded from the same stream.

Arguments are judged by core itself: each kernel first runs the CPU's own op on a scratch tensor of
one element, so dtypes, bounds and messages are those of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from torch_spyre_ref import _bridge
from torch_spyre_ref.aten.fallback import count
from torch_spyre_ref.emulator import philox

Generator: TypeAlias = torch.Generator | None
# Words and the number of elements they are for, to values.
Convert: TypeAlias = Callable[[philox.Words], npt.NDArray[Any]]

_CHUNK: Final = 1 << 16
_scratch_generator: Final = torch.Generator()
# A float's digits: uniforms of that many bits are exact in the format, so none rounds up to 1.
_DIGITS: Final = MappingProxyType(
    {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
)


def uniform_(
    self: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).uniform_(low, high, generator=_scratch_generator)
    digits = _DIGITS[_real(self.dtype)]
    words = philox.UNIFORM_WORDS[_float_bytes(self)]

    def convert(bits: philox.Words) -> npt.NDArray[Any]:
        return philox.uniform(bits, digits) * (high - low) + low

    host = _draw(self, generator, words, convert)
    if (low, high) != (0.0, 1.0):
        # Scaled and rounded, a value just below the open end may have landed on it.
        values = _real_view(host)
        values.masked_fill_(values >= high, low)
    return self.copy_(host)


def normal_(
    self: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).normal_(mean, std, generator=_scratch_generator)
    if self.is_complex():
        std = std / math.sqrt(2.0)
    itemsize = _float_bytes(self)

    def convert(bits: philox.Words) -> npt.NDArray[Any]:
        return philox.normal(bits, itemsize) * std + mean

    return self.copy_(_draw(self, generator, philox.NORMAL_WORDS[itemsize], convert))


def log_normal_(
    self: torch.Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).log_normal_(mean, std, generator=_scratch_generator)
    itemsize = _float_bytes(self)

    def convert(bits: philox.Words) -> npt.NDArray[Any]:
        return np.exp(philox.normal(bits, itemsize) * std + mean)

    return self.copy_(_draw(self, generator, philox.NORMAL_WORDS[itemsize], convert))


def exponential_(
    self: torch.Tensor, lambd: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).exponential_(lambd, generator=_scratch_generator)
    return _from_open_uniform(self, generator, lambda u: np.log(u) * (-1.0 / lambd))


def cauchy_(
    self: torch.Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).cauchy_(median, sigma, generator=_scratch_generator)
    return _from_open_uniform(
        self, generator, lambda u: np.tan((u - 0.5) * math.pi) * sigma + median
    )


def geometric_(self: torch.Tensor, p: float, *, generator: Generator = None) -> torch.Tensor:
    _scratch(self).geometric_(p, generator=_scratch_generator)
    return _from_open_uniform(
        self, generator, lambda u: np.ceil(np.log(u) * (1.0 / math.log1p(-p)))
    )


def random_from(
    self: torch.Tensor, low: int, high: int | None, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).random_(low, high, generator=_scratch_generator)
    return _from_integers(self, generator, low, None if high is None else high - 1)


def random_to(self: torch.Tensor, high: int, *, generator: Generator = None) -> torch.Tensor:
    _scratch(self).random_(high, generator=_scratch_generator)
    return _from_integers(self, generator, 0, high - 1)


def random_(self: torch.Tensor, *, generator: Generator = None) -> torch.Tensor:
    _scratch(self).random_(generator=_scratch_generator)
    return _from_integers(self, generator, 0, None)


def bernoulli_float_(
    self: torch.Tensor, p: float = 0.5, *, generator: Generator = None
) -> torch.Tensor:
    _scratch(self).bernoulli_(p, generator=_scratch_generator)
    return self.copy_(_draw(self, generator, 1, lambda bits: bits < p * 2.0**32))


def bernoulli_tensor_(
    self: torch.Tensor, p: torch.Tensor, *, generator: Generator = None
) -> torch.Tensor:
    _own_generator(self, generator)
    count("aten::bernoulli_.Tensor")
    likely = p.cpu()
    scratch = _cpu(p.shape if self.numel() else self.shape, self.dtype)
    scratch.bernoulli_(likely, generator=_scratch_generator)
    likely = likely.expand(self.shape)
    draws = _cpu(self.shape, torch.float64)
    _fill(draws, self, generator, 1, lambda bits: bits * 2.0**-32)
    return self.copy_(draws < likely)


def bernoulli_out(
    self: torch.Tensor, *, generator: Generator = None, out: torch.Tensor
) -> torch.Tensor:
    return out.resize_(self.shape).bernoulli_(self, generator=generator)


def randperm_out(n: int, *, generator: Generator = None, out: torch.Tensor) -> torch.Tensor:
    _own_generator(out, generator)
    if n < 0 or out.dtype is not torch.int64:
        torch.randperm(n, dtype=out.dtype, device="cpu", generator=_scratch_generator)
    out.resize_(n)
    keys = _cpu((n,), torch.int64)
    _fill(keys, out, generator, 2, lambda bits: philox.longs(bits).view(np.int64))
    return out.copy_(torch.from_numpy(np.argsort(keys.numpy(), kind="stable")))


def native_dropout(
    input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.empty_like(input, dtype=torch.bool)
    if train is False:
        return input.clone(), mask.fill_(True)
    mask.bernoulli_(1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return input.mul(mask).mul_(scale), mask


def normal_tensor_float(
    mean: torch.Tensor, std: float = 1.0, *, generator: Generator = None
) -> torch.Tensor:
    return _contiguous_like(mean, mean.shape).normal_(0.0, std, generator=generator).add_(mean)


def normal_float_tensor(
    mean: float, std: torch.Tensor, *, generator: Generator = None
) -> torch.Tensor:
    _check_std(std)
    values = _contiguous_like(std, std.shape).normal_(generator=generator)
    return values.mul_(std).add_(mean)


def normal_tensor_tensor(
    mean: torch.Tensor, std: torch.Tensor, *, generator: Generator = None
) -> torch.Tensor:
    _check_std(std)
    shape = torch.Size(np.broadcast_shapes(mean.shape, std.shape))
    return _contiguous_like(mean, shape).normal_(generator=generator).mul_(std).add_(mean)


def _into_out(functional: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make the ``out=`` variant of ``functional``: compute, then write; ``out`` may be an input."""

    def kernel(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        values = functional(*args, **kwargs)
        return out.resize_(values.shape).copy_(values)

    return kernel


KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "uniform_": uniform_,
        "normal_": normal_,
        "log_normal_": log_normal_,
        "exponential_": exponential_,
        "cauchy_": cauchy_,
        "geometric_": geometric_,
        "random_": random_,
        "random_.to": random_to,
        "random_.from": random_from,
        "bernoulli_.float": bernoulli_float_,
        "bernoulli_.Tensor": bernoulli_tensor_,
        "bernoulli.out": bernoulli_out,
        "randperm.generator_out": randperm_out,
        "native_dropout": native_dropout,
        "normal.Tensor_float": normal_tensor_float,
        "normal.float_Tensor": normal_float_tensor,
        "normal.Tensor_Tensor": normal_tensor_tensor,
        "normal.Tensor_float_out": _into_out(normal_tensor_float),
        "normal.float_Tensor_out": _into_out(normal_float_tensor),
        "normal.Tensor_Tensor_out": _into_out(normal_tensor_tensor),
    }
)


def _scratch(self: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor that core judges as it would judge ``self``: dtype, size 0, overlap."""
    if self.numel() == 0:
        return _cpu((0,), self.dtype)
    one = _cpu((1,), self.dtype)
    repeats = any(n > 1 and step == 0 for n, step in zip(self.shape, self.stride(), strict=True))
    return one.expand(2) if repeats else one


def _own_generator(self: torch.Tensor, generator: Generator) -> torch.Generator:
    """Return the generator to draw from; refuse one of another device, as core does."""
    if generator is None:
        return _bridge.default_generator(self.device.index)
    wanted, found = self.device, generator.device
    if wanted.type != found.type:
        raise RuntimeError(
            f"Expected a '{wanted.type}' device type for generator but found '{found.type}'"
        )
    if wanted.index != found.index:
        raise RuntimeError(f"Expected a '{wanted}' generator device but found '{found}'")
    return generator


def _draw(self: torch.Tensor, generator: Generator, words: int, convert: Convert) -> torch.Tensor:
    """Return a CPU tensor of ``self``'s shape and dtype, each float of it made from ``words``."""
    host = _cpu(self.shape, self.dtype)
    _fill(_real_view(host), self, generator, words, convert)
    return host


def _fill(
    host: torch.Tensor, self: torch.Tensor, generator: Generator, words: int, convert: Convert
) -> None:
    """Fill contiguous ``host`` in order, taking ``words`` an element from ``self``'s generator."""
    own = _own_generator(self, generator)
    flat = host.view(-1)
    if not len(flat):
        return
    seed, offset = _bridge.generator_reserve(own, len(flat) * words)
    for start in range(0, len(flat), _CHUNK):
        part = flat[start : start + _CHUNK]
        bits = philox.random_bits(seed, offset + start * words, len(part) * words)
        part.copy_(torch.from_numpy(convert(bits)))


def _from_open_uniform(
    self: torch.Tensor,
    generator: Generator,
    formula: Callable[[philox.Floats], npt.NDArray[Any]],
) -> torch.Tensor:
    itemsize = _float_bytes(self)
    words = philox.UNIFORM_WORDS[itemsize]
    return self.copy_(
        _draw(self, generator, words, lambda bits: formula(philox.open_uniform(bits, itemsize)))
    )


def _from_integers(
    self: torch.Tensor, generator: Generator, low: int, high: int | None
) -> torch.Tensor:
    """Fill with integers from ``low`` to ``high``, both included; None is the dtype's greatest."""
    if not self.numel():
        return self
    first = _representable(self.dtype, low, 1)
    last = _largest(self.dtype) if high is None else _representable(self.dtype, high, -1)

    def convert(bits: philox.Words) -> npt.NDArray[Any]:
        return philox.integers(bits, first, last - first + 1)

    return self.copy_(_draw(self, generator, philox.INTEGER_WORDS, convert))


def _representable(dtype: torch.dtype, bound: int, inward: int) -> int:
    """Move ``bound`` inward to the next integer of ``dtype``, so that no draw rounds past it."""
    if not dtype.is_floating_point:
        return bound
    rounded = torch.tensor(bound, device="cpu").to(dtype)
    if (int(rounded) - bound) * inward < 0:
        rounded = torch.nextafter(rounded, torch.full_like(rounded, inward * math.inf))
    return int(rounded)


def _largest(dtype: torch.dtype) -> int:
    """Return the greatest value of ``random_`` without an end: 2**digits for a float."""
    if dtype is torch.bool:
        return 1
    return 1 << _DIGITS[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max


def _float_bytes(self: torch.Tensor) -> int:
    """Bytes of the floats in which values are computed: half formats compute in float32."""
    if self.dtype.is_floating_point or self.is_complex():
        return max(4, _real(self.dtype).itemsize)
    return 8


def _cpu(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Make a CPU tensor, also where ``torch.set_default_device`` names the card."""
    return torch.empty(shape, dtype=dtype, device="cpu")


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _real_view(host: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(host) if host.is_complex() else host


def _contiguous_like(example: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.empty(shape, dtype=example.dtype, device=example.device)


def _check_std(std: torch.Tensor) -> None:
    if std.is_complex():
        raise RuntimeError("normal expects standard deviation to be non-complex")
    if std.numel() and not bool(std.min().ge(0)):
        raise RuntimeError("normal expects all elements of std >= 0.0")
