"""The correction slot: what a launch patches into a program, as the card reads it at fetch.

First the address symbols, 256 bytes each: a composite address and the byte at which the operand
starts in it. Then the number symbols, 8 bytes each: sizes and scalars, integers or float64. The
whole is padded to sticks. Everything is little-endian::

    0    uint32  chunks (1 to 8)         32   chunk 0: uint64 region, uint64 offset, uint64 length
    4    uint32  0                       56   chunk 1 ...
    8    uint64  grain                   224  0 ...
    16   uint64  start byte
    24   uint64  0
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from torch_spyre_ref.emulator.addresses import MAX_CHUNKS, Chunk, CompositeAddress
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.model import Number, Program

ADDRESS_BYTES: Final = 256
STICK: Final = 128

_HEAD: Final = struct.Struct("<IIQQQ")
_CHUNKS: Final = struct.Struct("<24Q")
_LETTERS: Final = [
    f"IIQQQ{3 * count}Q{ADDRESS_BYTES - _HEAD.size - 24 * count}x"
    for count in range(MAX_CHUNKS + 1)
]
_DESCRIPTORS: Final = [struct.Struct(f"<{letters}") for letters in _LETTERS]
_BITS: Final = 64


class Location(NamedTuple):
    """One argument's place: the view starts at byte ``start`` of ``address``."""

    address: CompositeAddress
    start: int


def slot_end(addresses: int, symbols: int) -> int:
    """The first byte behind so many address and number symbols."""
    return addresses * ADDRESS_BYTES + symbols * 8


def slot_bytes(addresses: int, symbols: int) -> int:
    """Bytes of a correction slot with so many address and number symbols."""
    return -(-slot_end(addresses, symbols) // STICK) * STICK


def pack_address(address: CompositeAddress, start: int) -> bytes:
    """The 256-byte descriptor of an argument; that of a whole address is made once."""
    if start == 0 and address.described:
        return address.described
    count = len(address.chunks)
    words = address.chunks[0] if count == 1 else [w for chunk in address.chunks for w in chunk]
    packed = _DESCRIPTORS[count].pack(count, 0, address.grain, start, 0, *words)
    if start == 0:
        object.__setattr__(address, "described", packed)
    return packed


def pack_slot(addresses: Sequence[Location], symbols: Sequence[int | float] = ()) -> bytes:
    """A whole correction slot; integers become int64, floats float64."""
    tail = b"".join(struct.pack("<d" if isinstance(s, float) else "<q", s) for s in symbols)
    slot = b"".join(pack_address(*place) for place in addresses) + tail
    return slot.ljust(slot_bytes(len(addresses), len(symbols)), b"\0")


def read_slot(program: Program, slot: bytes) -> tuple[list[Location], list[int | float]]:
    """Addresses and number symbols of a slot. Raises ``ProgramError`` when it is none."""
    need = slot_bytes(program.addresses, program.symbols)
    if len(slot) != need:
        raise ProgramError(
            f"program {program.name!r} takes a correction slot of {need} bytes "
            f"({program.addresses} addresses, {program.symbols} numbers), not {len(slot)}"
        )
    whose = f"the correction slot of program {program.name!r}"
    places = [read_address(slot, i, whose) for i in range(program.addresses)]
    start = program.addresses * ADDRESS_BYTES
    layout = "<" + "".join(_letters(program.numbers, program.symbols))
    return places, list(struct.unpack_from(layout, slot, start))


def _letters(numbers: Sequence[Number], count: int) -> list[str]:
    letters = ["q"] * count
    for number in numbers:
        if number.op == "float symbol":
            letters[int(number.value)] = "d"
    return letters


def read_address(slot: bytes, index: int, whose: str = "the correction slot") -> Location:
    """Address symbol ``index`` of a slot. Raises ``ProgramError`` when it is none."""
    at = index * ADDRESS_BYTES
    try:
        return _location(slot[at : at + ADDRESS_BYTES])
    except ProgramError as error:
        raise ProgramError(f"address symbol {index} of {whose}{error}") from None


@lru_cache(4_096)
def _location(descriptor: bytes) -> Location:
    """What 256 bytes name: the same object for the same bytes."""
    count, zero, grain, start, _ = _HEAD.unpack_from(descriptor)
    words = _CHUNKS.unpack_from(descriptor, _HEAD.size)
    if not 1 <= count <= MAX_CHUNKS or zero:
        raise ProgramError(
            f" says {count} chunks; it must be 1 to {MAX_CHUNKS}: was the slot patched before it "
            "was fetched?"
        )
    chunks = tuple(Chunk(*words[i : i + 3]) for i in range(0, 3 * count, 3))
    if max(grain, start, *(word for chunk in chunks for word in chunk)) >> (_BITS - 1):
        raise ProgramError(
            f" is {chunks}, start {start}, grain {grain}: out of any card's memory; was the slot "
            "patched before it was fetched?"
        )
    try:
        return Location(CompositeAddress(chunks, grain), start)
    except ValueError as error:
        raise ProgramError(f": {error}") from None
