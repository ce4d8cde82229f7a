"""Fused chains on 4 M float16 elements, one launch of one program, against torch's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import Figure, interleaved, ratio
from benchmarks.programs import prepared, run
from torch_spyre_ref.emulator.assembly import Assembler, Wire
from torch_spyre_ref.launch import JobPlan
from torch_spyre_ref.spyrecode import Argument, LaunchSpec

COUNT = 4 << 20

Chain = Callable[..., Any]
"""A chain on card values or on tensors: ``call(op, x)`` is a function's name and its argument."""


def figures() -> list[Figure]:
    """A chain of plain arithmetic, the same on two tensors, and one with tanh and exp."""
    chains: list[tuple[str, Chain, int, float]] = [
        ("mul, add, relu, mul, sub, add with numbers", with_numbers, 1, 1.0),
        # Two tensors an operation are as fast as NumPy reads them, which is not as fast as torch.
        ("mul, add, relu, mul, sub, add with a second tensor", with_tensors, 2, 1.2),
        ("mul, add, tanh, mul, sub, exp with numbers", smooth, 1, 0.7),
    ]
    return [_measure(*chain) for chain in chains]


def with_numbers(call: Callable[[str, Any], Any], x: Any) -> Any:
    """Six operations, one tensor."""
    return call("relu", x * 2.0 + 0.5) * 1.5 - 0.25 + 1.0


def with_tensors(call: Callable[[str, Any], Any], x: Any, y: Any) -> Any:
    """Six operations, each of two tensors but for relu."""
    return call("relu", x * y + x) * y - x + y


def smooth(call: Callable[[str, Any], Any], x: Any) -> Any:
    """Six operations, two of them of the special-function unit."""
    return call("exp", call("tanh", x * 2.0 + 0.5) * 1.5 - 0.25)


def _measure(what: str, chain: Chain, inputs: int, goal: float) -> Figure:
    torch.manual_seed(0)
    host = [torch.randn(COUNT).half() for _ in range(inputs)]
    card = [x.to("spyre:0") for x in host]
    out = torch.empty(COUNT, dtype=torch.float16, device="spyre:0")
    plan = _program(chain, inputs)

    def ours() -> None:
        run(plan, [*card, out])

    def theirs() -> torch.Tensor:
        result: torch.Tensor = chain(lambda op, x: getattr(torch, op)(x), *host)
        return result

    ours()
    # The chain keeps float32 between its operations, torch rounds each result to float16.
    torch.testing.assert_close(out.cpu(), theirs(), rtol=1e-2, atol=1e-1)
    fast, slow = interleaved(ours, theirs, calls=5, rounds=15)
    return ratio(f"{what}: one launch / torch CPU eager", fast * 1e3, slow * 1e3, "ms", goal)


def _program(chain: Chain, inputs: int) -> JobPlan:
    asm = Assembler("chain")

    def call(op: str, x: Wire) -> Wire:
        return asm.apply("maximum", x, 0.0) if op == "relu" else asm.apply(op, x)

    n = asm.dimension("n", COUNT)
    names = "xy"[:inputs]
    tensors = [asm.argument(name, "float16") for name in names]
    out = asm.argument("out", "float16")
    asm.store(out, {n: 1}, chain(call, *(asm.load(tensor, {n: 1}) for tensor in tensors)))
    spec = [Argument(name, "input", "float16", (COUNT,), (1,)) for name in names]
    return prepared(
        asm, LaunchSpec.of([*spec, Argument("out", "output", "float16", (COUNT,), (1,))])
    )
