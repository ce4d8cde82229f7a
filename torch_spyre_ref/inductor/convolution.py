"""Convolutions, as reductions: sums of products over channels and taps, like a product of matrices.

With ``n`` an image, ``g`` a group, ``p`` a place of the output and ``t`` a tap of the kernel, which
meet at the place ``q = p * stride + t * dilation`` of the padded input::

    output[n, g, o, p]              sums  input[n, g, c, q] * weight[g, o, c, t]  over c, t
    gradient of weight[g, o, c, t]  sums  input[n, g, c, q] * grad[n, g, o, p]    over n, p

A transposed convolution, which is also the gradient of an input, is the first line with the weight
turned around, of an input with zeros between its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._inductor.ir import Reduction, TensorBox
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V, ops
from torch.utils._sympy.functions import FloorDiv

aten = torch.ops.aten
Sizes = Sequence[Any]

_library: list[torch.library.Library] = []


def define() -> None:
    """Define the two operations and their lowerings, once."""
    if _library:
        return
    library = torch.library.Library("spyre", "FRAGMENT")
    _library.append(library)
    lowered: dict[str, Callable[..., Any]] = {
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
    }
    for name, lower in lowered.items():
        schema = str(getattr(aten, name).default._schema)
        library.define(schema.removeprefix("aten::"))
        library.impl(name, getattr(aten, name).default, "Meta")
        op = getattr(torch.ops.spyre, name).default
        register_lowering(op, type_promotion_kind=None)(lower)


class Window(NamedTuple):
    """How a kernel goes over the places of an image: a number for each of its dimensions."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    output_padding: Sizes
    groups: int

    @classmethod
    def of(cls, weight: TensorBox, *numbers: Sizes, groups: int) -> Window:
        """One number stands for all dimensions."""
        dims = len(weight.get_size()) - 2
        stride, padding, dilation, more = (n if len(n) > 1 else [n[0]] * dims for n in numbers)
        return cls(stride, padding, dilation, more, groups)


def _convolution(
    input: TensorBox,
    weight: TensorBox,
    bias: TensorBox | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> TensorBox:
    window = Window.of(weight, stride, padding, dilation, output_padding, groups=groups)
    output = (_spread if transposed else _gathered)(input, weight, window)
    if bias is not None:
        ones = [1] * (len(output.get_size()) - 2)
        shaped = _call(aten.view, bias, [1, bias.get_size()[0], *ones])
        output = _call(aten.add, output, shaped)
    return output


def _convolution_backward(
    grad: TensorBox,
    input: TensorBox,
    weight: TensorBox,
    bias_sizes: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    wanted: Sequence[bool],
) -> list[TensorBox | None]:
    window = Window.of(weight, stride, padding, dilation, output_padding, groups=groups)
    made: list[TensorBox | None] = [None, None, None]
    if wanted[0]:
        made[0] = _gradient_of_input(grad, input, weight, window, transposed)
    if wanted[1]:
        many, few = (grad, input) if transposed else (input, grad)
        made[1] = _gradient_of_weight(many, few, weight, window)
    if wanted[2]:
        others = [dim for dim in range(len(grad.get_size())) if dim != 1]
        made[2] = _call(aten.sum, grad, others)
    return made


def _gradient_of_input(
    grad: TensorBox, input: TensorBox, weight: TensorBox, window: Window, transposed: bool
) -> TensorBox:
    places = input.get_size()[2:]
    if transposed:
        return _gathered(grad, weight, window, places)
    covered = _places_of_transposed(grad, weight, window)
    rest = [size - least for size, least in zip(places, covered, strict=True)]
    return _spread(grad, weight, window._replace(output_padding=rest))


def _gathered(
    input: TensorBox, weight: TensorBox, window: Window, places: Sizes | None = None
) -> TensorBox:
    """The first line, by default for all places where the kernel fits."""
    padded = _padded(input, [(size, size) for size in window.padding])
    (outputs, channels, *taps), groups = weight.get_size(), window.groups
    steps = _steps(padded, taps, window)
    outputs = FloorDiv(outputs, groups)
    load, factor = padded.make_loader(), weight.make_loader()

    def product(kept: Sizes, summed: Sizes) -> Any:
        (n, g, o, *place), (c, *tap) = kept, summed
        at = _at(place, tap, window)
        return ops.dot(load([n, g * channels + c, *at]), factor([g * outputs + o, c, *tap]))

    images = input.get_size()[0]
    kept = [images, groups, outputs, *(steps if places is None else places)]
    made = _summed(input, kept, [channels, *taps], product)
    return _call(aten.view, made, [images, groups * outputs, *kept[3:]])


def _spread(input: TensorBox, weight: TensorBox, window: Window) -> TensorBox:
    """A transposed convolution. The weight is (input channels, output channels of a group, …)."""
    (channels, outputs, *taps), groups = weight.get_size(), window.groups
    turned = _call(aten.view, weight, [groups, FloorDiv(channels, groups), outputs, *taps])
    turned = _call(aten.permute, turned, [0, 2, 1, *range(3, 3 + len(taps))])
    turned = _call(torch.ops.prims.rev.default, turned, list(range(3, 3 + len(taps))))
    turned = _call(aten.view, turned, [groups * outputs, FloorDiv(channels, groups), *taps])
    sides = []
    for tap, step, pad, dilate, more in zip(taps, *window[:4], strict=True):
        around = dilate * (tap - 1) - pad
        sides.append((around, around + more - (step - 1)))
    spaced = _padded(_spaced(input, window.stride), sides)
    ones, zeros = [1] * len(taps), [0] * len(taps)
    return _gathered(spaced, turned, window._replace(stride=ones, padding=zeros))


def _places_of_transposed(input: TensorBox, weight: TensorBox, window: Window) -> list[Any]:
    """How many there are without any output padding."""
    sizes, taps = input.get_size()[2:], weight.get_size()[2:]
    return [
        (size - 1) * step - 2 * pad + dilate * (tap - 1) + 1
        for size, tap, step, pad, dilate in zip(sizes, taps, *window[:3], strict=True)
    ]


def _gradient_of_weight(
    many: TensorBox, few: TensorBox, weight: TensorBox, window: Window
) -> TensorBox:
    """The second line: ``many`` has the places that the kernel covers from each one of ``few``."""
    padded = _padded(many, [(size, size) for size in window.padding])
    (outputs, channels, *taps), groups = weight.get_size(), window.groups
    outputs = FloorDiv(outputs, groups)
    load, factor = padded.make_loader(), few.make_loader()

    def product(kept: Sizes, summed: Sizes) -> Any:
        (g, o, c, *tap), (n, *place) = kept, summed
        at = _at(place, tap, window)
        return ops.dot(load([n, g * channels + c, *at]), factor([n, g * outputs + o, *place]))

    images, _, *places = few.get_size()
    made = _summed(many, [groups, outputs, channels, *taps], [images, *places], product)
    return _call(aten.view, made, [groups * outputs, channels, *taps])


def _at(place: Sizes, tap: Sizes, window: Window) -> list[Any]:
    moves = zip(place, window.stride, tap, window.dilation, strict=True)
    return [p * step + t * dilate for p, step, t, dilate in moves]


def _steps(padded: TensorBox, taps: Sizes, window: Window) -> list[Any]:
    """How many places there are where a kernel fits."""
    sizes = zip(padded.get_size()[2:], taps, window.stride, window.dilation, strict=True)
    return [FloorDiv(size - dilate * (tap - 1) - 1, step) + 1 for size, tap, step, dilate in sizes]


def _summed(like: TensorBox, kept: Sizes, summed: Sizes, product: Callable[..., Any]) -> TensorBox:
    empty = any(V.graph.sizevars.statically_known_equals(size, 0) for size in summed)
    made: TensorBox = Reduction.create(
        device=like.get_device_or_error(),
        dst_dtype=like.get_dtype(),
        src_dtype=like.get_dtype(),
        inner_fn=product,
        ranges=list(kept),
        reduction_ranges=list(summed),
        reduction_type="sum" if empty else "dot",
    )
    made.realize()
    return made


def _padded(image: TensorBox, sides: Sequence[tuple[Any, Any]]) -> TensorBox:
    """Zeros, or fewer elements, before and after each dimension of an image's places."""
    if all(side == (0, 0) for side in sides):
        return image
    flat = [size for side in reversed(sides) for size in side]
    padded: TensorBox = _call(aten.constant_pad_nd, image, flat, 0)
    padded.realize()
    return padded


def _spaced(image: TensorBox, stride: Sizes) -> TensorBox:
    """``stride - 1`` zeros behind each element."""
    for dim, step in enumerate(stride, 2):
        if step != 1:
            sizes = list(image.get_size())
            behind = [0, 0] * (len(sizes) - dim - 1) + [0, step - 1]
            image = _call(aten.constant_pad_nd, _call(aten.unsqueeze, image, dim + 1), behind, 0)
            sizes[dim] = sizes[dim] * step
            image = _call(aten.view, image, sizes)
    return image


def _call(packet: Any, *args: Any) -> TensorBox:
    made: TensorBox = lowerings[packet](*args)
    return made
