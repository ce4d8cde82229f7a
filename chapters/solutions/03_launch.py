"""Answers to the exercises of chapter 3.

1. Predict. With four slots the seventh launch takes the slot of the third. Behind another program
   that has not started it is fetched when that one starts, and its patch comes later all the same:
   the sixth. An evicted program is loaded again, with slots in which nothing was ever patched: no
   address, so the launch fails. With the barrier none of this matters.
"""

from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.runtime import QueueError
from torch_spyre_ref.spyrecode import Argument, Dimension, LaunchSpec, Scalar, write_artifact
from torch_spyre_ref.submission import OneQueue

PREDICTION = {
    "4 slots, no barrier": 3,
    "1 slot, no barrier, behind a run of another program that has not started": 6,
    "2 slots, no barrier, after the program was evicted": "none",
    "2 slots, with the barrier, after the program was evicted": 7,
}


# 2. Extend. Symbols are given in the order in which the spec lists them: dimensions, then scalars.
def axpy_artifact(directory):
    """Write the artifact of ``y = alpha * x + y`` to ``directory``."""
    asm = Assembler("axpy")
    length, x_step, y_step = (asm.size_symbol() for _ in range(3))
    alpha = asm.float_symbol()
    n = asm.dimension("n", length)
    x, y = asm.argument("x", "float32"), asm.argument("y", "float32")
    result = alpha * asm.load(x, {n: x_step}) + asm.load(y, {n: y_step})
    asm.store(y, {n: y_step}, result)
    spec = LaunchSpec.of(
        [
            Argument("x", "input", "float32", ("n",), ("x_step",)),
            Argument("y", "input_output", "float32", ("n",), ("y_step",)),
        ],
        [Dimension("n", 0, 4096), Dimension("x_step", 0, 4096), Dimension("y_step", 1, 4096)],
        [Scalar("alpha", "float")],
    )
    write_artifact(directory, asm.assemble(), spec, name="axpy")


# 3. Open. One operation instead of three, when nothing changed. What was remembered can be wrong in
# two ways. A slot belongs to one load of a job: after an eviction there are new ones, of which nothing
# is known, and nothing is found. And a transfer can be dropped, by an error before it or by `reset`.
# While the launch that filled the slot is still pending that is no matter: what drops it drops this
# one too, which comes later in the same queue, or after that one by the edge that `OneQueue`
# adds. When it is over, its queue is asked whether it was done. The barrier is not needed where the
# slot has held these very bytes since before the submission; but whether it has, or the transfer is
# still on its way, nobody below the queue can tell. So it stays up.
class Remembering(OneQueue):
    """Leaves preparation out where the slot holds these very bytes."""

    def __init__(self):
        self.known = {}

    def launch(self, queue, bound):
        if self.known.get(bound.slot) == bound.patch and arrives(bound.slot):
            bound = bound._replace(preparation=())
        ticket = super().launch(queue, bound)
        self.known[bound.slot] = bound.patch
        return ticket


def arrives(slot):
    """Whether the last launch through a slot was done, or will be done before the next one is."""
    if slot.queue.error is not None:
        return False
    if slot.queue.is_over(slot.ticket):
        try:
            slot.queue.wait(slot.ticket)  # it is over: this only asks
        except QueueError:
            return False
    return True
