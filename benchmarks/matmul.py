"""A matmul of float16 matrices, one launch of one program, against NumPy's float32 product."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.measure import Figure, interleaved, ratio
from benchmarks.programs import prepared, run
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.launch import JobPlan
from torch_spyre_ref.spyrecode import Argument, LaunchSpec

SIZE = 1024


def figures() -> list[Figure]:
    """1024 × 1024 × 1024; torch's own float16 matmul on a CPU is no measure for speed."""
    torch.manual_seed(0)
    left, right = torch.randn(2, SIZE, SIZE).half()
    args = [left.to("spyre:0"), right.to("spyre:0"), torch.empty_like(left, device="spyre:0")]
    wide = left.float().numpy(), right.float().numpy()
    product = np.empty((SIZE, SIZE), np.float32)
    plan = _program()
    run(plan, args)
    expected = torch.from_numpy(np.matmul(*wide)).half()
    torch.testing.assert_close(args[2].cpu(), expected, rtol=2e-3, atol=2e-2)
    ours, theirs = interleaved(
        lambda: run(plan, args), lambda: np.matmul(*wide, out=product), rounds=15
    )
    what = f"{SIZE}³ float16 matmul, one launch / NumPy float32"
    return [ratio(what, ours * 1e3, theirs * 1e3, "ms", 1.2)]


def _program() -> JobPlan:
    asm = Assembler("matmul")
    rows, columns, inner = (asm.dimension(name, SIZE) for name in ("rows", "columns", "inner"))
    a, b, c = (asm.argument(name, "float16") for name in "abc")
    with asm.stream(inner):
        left = asm.load(a, {rows: SIZE, inner: 1})
        right = asm.load(b, {inner: SIZE, columns: 1})
        product = asm.matmul(left, right)
    asm.store(c, {rows: SIZE, columns: 1}, product)
    roles = {"a": "input", "b": "input", "c": "output"}
    shape, strides = (SIZE, SIZE), (SIZE, 1)
    return prepared(
        asm,
        LaunchSpec.of(
            [Argument(name, role, "float16", shape, strides) for name, role in roles.items()]  # type: ignore[arg-type]
        ),
    )
