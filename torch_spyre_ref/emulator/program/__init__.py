"""Programs: what the card's cores execute, from bytes to results.

``decode`` turns bytes into an ``Executable``, which runs with a correction slot;
``encode`` makes the bytes. The data structures are in ``model``.
"""

from torch_spyre_ref.emulator.program.encoding import encode, parse
from torch_spyre_ref.emulator.program.errors import IndexFaultError, ProgramError, ScratchpadError
from torch_spyre_ref.emulator.program.executable import Executable, Footprint, Patched, decode
from torch_spyre_ref.emulator.program.formats import FORMATS, Format
from torch_spyre_ref.emulator.program.model import (
    Dimension,
    Instruction,
    Number,
    Operand,
    Place,
    Program,
    Source,
    Stage,
    Value,
)
from torch_spyre_ref.emulator.program.slot import Location, pack_address, pack_slot, slot_bytes
from torch_spyre_ref.emulator.program.timing import StageCost

__all__ = [
    "FORMATS",
    "Dimension",
    "Executable",
    "Footprint",
    "Format",
    "IndexFaultError",
    "Instruction",
    "Location",
    "Number",
    "Operand",
    "Patched",
    "Place",
    "Program",
    "ProgramError",
    "ScratchpadError",
    "Source",
    "Stage",
    "StageCost",
    "Value",
    "decode",
    "encode",
    "pack_address",
    "pack_slot",
    "parse",
    "slot_bytes",
]
