"""Answers to the exercises of chapter 5.

1. Predict. Which tensors are one and the same is in no key, so three sums are one program. Numbers are
   symbols; their type is not: two. `add_` is derived from `add` and stores elsewhere: another op, and
   another program. The transposed tensor has other sizes and strides: another call of the same family,
   so a second program, with symbols. Views move no byte. Of growing sizes the first has a program of
   its own and the second one with symbols.
"""

import torch

from torch_spyre_ref import backend
from torch_spyre_ref.compiled.build import compile_call
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op
from torch_spyre_ref.compiled.programs import first_run
from torch_spyre_ref.compiled.trace import Sizes
from torch_spyre_ref.emulator.disassembly import disassemble
from torch_spyre_ref.emulator.program import parse

PREDICTION = {
    "x + y, y + x, x + x": 1,
    "x + 1, x + 2, x + 2.5": 2,
    "x ** 2, x ** 3, x ** 4": 1,
    "x + y, x.add_(y)": 2,
    "x * 2, x.t() * 2": 2,
    "x[1:], x.t(), x.view(-1)": 0,
    "x[:n] + 1 for n = 2, 3, 4, 5": 2,
}


# 2. Extend. Element k of a running sum is the sum of all elements up to k: a product with a matrix that
# has ones on the diagonal and above it. It costs n products an element instead of one sum, and a card
# with a matrix array does not mind for rows that are not too long.
def running_sum(x, dim, *, dtype=None):
    """`aten::cumsum`, made of ops that have programs."""
    x = x.to(dtype or x.dtype)
    rows = x.movedim(dim, -1)
    size = rows.shape[-1]
    ones = torch.ones(size, size, dtype=x.dtype, device=x.device).triu()
    return (rows.reshape(-1, size) @ ones).reshape(rows.shape).movedim(-1, dim).contiguous()


# 3. Open. An elementwise op runs equally long: its dimensions are one, and a tile of that is as large as
# scratchpads allow, whatever the size. The softmax differs, and the lines that make it are those of the
# dimensions. With sizes known the tile fits the tensor, and a tensor that fits into one tile has nothing
# to overlap with: it is loaded, computed and stored one after another. With symbols a tile is made for
# rows that are likely, so there are several, and one is loaded while another is computed; but its rows
# have room for `ROW` numbers, so long rows are found out only at the launch, and then the kernel's other
# variant runs. Sizes that are known to vary (a batch, a sequence) are the ones to begin with symbols for.
def programs(name, shape, *rest):
    """One op on a tensor of ones: its call, and its program for these sizes and with symbols."""
    call = Call(Op(f"aten::{name}"), (torch.ones(shape).spyre(), *rest), {})
    symbols = [Sizes((True,) * len(shape), (False,) * len(shape))]
    return call, [first_run(compile_call(call, sizes), call)[0] for sizes in (None, symbols)]


def durations(name, shape, *rest):
    """Virtual ns that each of the two programs runs on the card."""
    call, found = programs(name, shape, *rest)
    return [run_time(launch, call) for launch in found]


def run_time(launch, call):
    """Virtual ns of one launch, without its preparation."""
    timeline = backend.current().runtime.timeline
    torch.accelerator.synchronize(0)
    timeline.clear()
    launch(call.tensors, call.numbers)
    torch.accelerator.synchronize(0)
    return sum(record.end - record.start for record in timeline if record.kind == "Execute")


def dimensions(name, shape, *rest):
    """The lines of the two programs that are about dimensions."""
    texts = [
        disassemble(parse(p.plan.job.artifact.program)) for p in programs(name, shape, *rest)[1]
    ]
    return [[line.strip() for line in t.splitlines() if ", tile " in line] for t in texts]
