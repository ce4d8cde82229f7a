"""The device's random numbers, on the PyTorch side: the random unit's own stream.

The maths lies in ``philox``, because the card has it in hardware. A
draw made on the host and one made by a program read the same words.
"""

from torch_spyre_ref.emulator.philox import (
    INTEGER_WORDS,
    LANES,
    NORMAL_WORDS,
    POSITIONS,
    ROUNDS,
    UNIFORM_WORDS,
    Floats,
    Longs,
    Words,
    integers,
    longs,
    normal,
    open_uniform,
    philox4x32,
    random_bits,
    uniform,
)

__all__ = [
    "INTEGER_WORDS",
    "LANES",
    "NORMAL_WORDS",
    "POSITIONS",
    "ROUNDS",
    "UNIFORM_WORDS",
    "Floats",
    "Longs",
    "Words",
    "integers",
    "longs",
    "normal",
    "open_uniform",
    "philox4x32",
    "random_bits",
    "uniform",
]
