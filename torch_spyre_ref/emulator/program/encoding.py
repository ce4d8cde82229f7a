"""A program as bytes: 128-byte words, integers little-endian, every section on a word.

===========  =======  ==========================================================
section      record   contents
===========  =======  ==========================================================
header       128      magic, version, counts, name
numbers      16       op, operands of arithmetic, constant or symbol
operands     64       symbolic or the job's own, format, symbol, offset, name
stage        128      counts, then the passes: a bit mask of dimensions each
 dimensions  64       size (number), cores, tile, name
 values      16       format, depth, dimensions (mask), scratchpad offset, bytes
 instructions 128     op, pass, inputs, outputs, place
===========  =======  ==========================================================

The last four repeat for every stage. Reading checks that the bytes are exactly such sections;
``check`` then checks what they mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from torch_spyre_ref.emulator.program.check import check
from torch_spyre_ref.emulator.program.errors import ProgramError
from torch_spyre_ref.emulator.program.formats import CODES, NAMES
from torch_spyre_ref.emulator.program.model import (
    MAX_DIMENSIONS,
    MAX_INDICES,
    MAX_INPUTS,
    MAX_OUTPUTS,
    MAX_PASSES,
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
from torch_spyre_ref.emulator.program.numbers import NUMBER_OPS, is_float
from torch_spyre_ref.emulator.program.units import OP_NAMES, OPS

WORD: Final = 128
MAGIC: Final = b"\x7fSPYPRG\0"
VERSION: Final = 1

_HEADER = struct.Struct("<8sHHHHHH4x64s40x")
_NUMBER = struct.Struct("<HHH2x8s")
_OPERAND = struct.Struct("<BBH4xq48s")
_STAGE = struct.Struct(f"<HHHH{MAX_PASSES}H88x")
_DIMENSION = struct.Struct("<HH4xQ48s")
_VALUE = struct.Struct("<BBH4xII")
_INSTRUCTION = struct.Struct(
    f"<HBBBBBBBBHhH{MAX_DIMENSIONS}H{MAX_INPUTS}H{MAX_OUTPUTS}H{MAX_INDICES}H{MAX_INDICES}H58x"
)
_NO_SYMBOL = 0xFFFF

Record = TypeVar("Record")


def encode(program: Program) -> bytes:
    """The bytes of ``program``. Raises ``ProgramError`` when it is not well-formed."""
    check(program)
    try:
        return _pack(program)
    except struct.error as error:
        raise ProgramError(
            f"program {program.name!r} has a field that does not fit its record: {error}"
        ) from None


def _pack(program: Program) -> bytes:
    sections = [
        _HEADER.pack(
            MAGIC,
            VERSION,
            len(program.numbers),
            len(program.operands),
            len(program.stages),
            program.addresses,
            program.symbols,
            _text(program.name, 64),
        ),
        _words(_NUMBER.pack(*_number(n)) for n in program.numbers),
        _words(_OPERAND.pack(*_operand(o)) for o in program.operands),
        *(_stage(stage) for stage in program.stages),
    ]
    return b"".join(sections)


def _words(records: Iterable[bytes]) -> bytes:
    section = b"".join(records)
    return section.ljust(-(-len(section) // WORD) * WORD, b"\0")


def _text(text: str, size: int) -> bytes:
    data = text.encode()
    if len(data) > size or "\0" in text:
        raise ProgramError(f"the name {text!r} does not fit in {size} bytes; use a shorter one")
    return data


def _number(number: Number) -> tuple[Any, ...]:
    bits = struct.pack("<d" if number.op == "float" else "<q", number.value)
    return NUMBER_OPS.index(number.op), number.a, number.b, bits


def _operand(operand: Operand) -> tuple[Any, ...]:
    symbol = _NO_SYMBOL if operand.symbol is None else operand.symbol
    job = operand.symbol is None
    return job, CODES[operand.format], symbol, operand.offset, _text(operand.name, 48)


def _mask(dimensions: Iterable[int]) -> int:
    return sum(1 << d for d in dimensions)


def _stage(stage: Stage) -> bytes:
    masks = [_mask(dimensions) for dimensions in stage.passes]
    head = _STAGE.pack(
        len(stage.dimensions),
        len(stage.passes),
        len(stage.values),
        len(stage.instructions),
        *_filled(masks, MAX_PASSES),
    )
    return (
        head
        + _words(
            _DIMENSION.pack(d.size, d.cores, d.tile, _text(d.name, 48)) for d in stage.dimensions
        )
        + _words(
            _VALUE.pack(CODES[v.format], v.depth, _mask(v.dimensions), v.offset, v.nbytes)
            for v in stage.values
        )
        + b"".join(_instruction(i) for i in stage.instructions)
    )


def _filled(numbers: Sequence[int], size: int) -> list[int]:
    return [*numbers, *[0] * (size - len(numbers))]


def _instruction(i: Instruction) -> bytes:
    place = i.place or Place(0, 0, ())
    return _INSTRUCTION.pack(
        OPS[i.op].code,
        i.turn,
        len(i.inputs),
        len(i.outputs),
        i.place is not None,
        place.masked,
        len(place.strides),
        len(place.index_strides),
        _mask(n for n, source in enumerate(i.inputs) if source.number),
        place.operand,
        i.parameter,
        place.base,
        *_filled(place.strides, MAX_DIMENSIONS),
        *_filled([source.entry for source in i.inputs], MAX_INPUTS),
        *_filled(i.outputs, MAX_OUTPUTS),
        *_filled(place.index_strides, MAX_INDICES),
        *_filled(place.limits, MAX_INDICES),
    )


def parse(data: bytes) -> Program:
    """The program that ``data`` holds, checked. Raises ``ProgramError`` when it is none.

    Safe on bytes from anywhere: nothing is allocated but the records that are there.
    """
    reader = _Reader(data)
    magic, version, numbers, operands, stages, addresses, symbols, name = reader.one(_HEADER)
    if magic != MAGIC or version != VERSION:
        raise ProgramError(
            f"these {len(data)} bytes do not begin as a program of version {VERSION} does; was "
            "the program loaded before it was run?"
        )
    program = Program(
        _name(name),
        addresses,
        symbols,
        tuple(reader.many(_NUMBER, numbers, _read_number)),
        tuple(reader.many(_OPERAND, operands, _read_operand)),
        tuple(_read_stage(reader) for _ in range(stages)),
    )
    reader.end()
    check(program)
    if _pack(program) != data:
        raise ProgramError(
            f"program {program.name!r} has bytes that mean nothing and are not 0; was the whole "
            "of it loaded, and nothing else written over it?"
        )
    return program


class _Reader:
    """Takes sections off the front of the bytes, and never past their end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def one(self, record: struct.Struct) -> tuple[Any, ...]:
        return next(record.iter_unpack(self._take(1, record.size)))

    def many(self, record: struct.Struct, count: int, read: Callable[..., Record]) -> list[Record]:
        section = self._take(count, record.size)
        return [read(*fields) for fields in record.iter_unpack(section)]

    def _take(self, count: int, size: int) -> bytes:
        start, length = self._at, count * size
        self._at += -(-length // WORD) * WORD
        if self._at > len(self._data):
            raise ProgramError(
                f"the program ends at byte {len(self._data)}, inside a section of {count} records "
                f"of {size} bytes at byte {start}; it was cut short or its counts are wrong"
            )
        return self._data[start : start + length]

    def end(self) -> None:
        if self._at != len(self._data):
            raise ProgramError(
                f"the program has {self._at} bytes, but {len(self._data)} were given"
            )


def _name(data: bytes) -> str:
    try:
        text = data.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        raise ProgramError(f"the bytes {data[:16].hex()}... are no name; a name is printable UTF-8")
    return text


def _one_of(names: Sequence[str], code: int, what: str) -> str:
    if code >= len(names):
        raise ProgramError(f"there is no {what} with code {code}; codes go to {len(names) - 1}")
    return names[code]


def _members(mask: int) -> tuple[int, ...]:
    return tuple(d for d in range(mask.bit_length()) if mask >> d & 1)


def _read_number(op: int, a: int, b: int, bits: bytes) -> Number:
    number = Number(_one_of(NUMBER_OPS, op, "number operation"), a, b)
    layout = "<d" if is_float(number) and number.op == "float" else "<q"
    return number._replace(value=struct.unpack(layout, bits)[0])


def _read_operand(job: int, code: int, symbol: int, offset: int, name: bytes) -> Operand:
    return Operand(_name(name), _one_of(NAMES, code, "format"), None if job else symbol, offset)


def _read_stage(reader: _Reader) -> Stage:
    dimensions, passes, values, instructions, *masks = reader.one(_STAGE)
    if not 1 <= passes <= MAX_PASSES:
        raise ProgramError(f"a stage has {passes} passes; it must have 1 to {MAX_PASSES}")
    return Stage(
        tuple(reader.many(_DIMENSION, dimensions, _read_dimension)),
        tuple(_members(mask) for mask in masks[:passes]),
        tuple(reader.many(_VALUE, values, _read_value)),
        tuple(reader.many(_INSTRUCTION, instructions, _read_instruction)),
    )


def _read_dimension(size: int, cores: int, tile: int, name: bytes) -> Dimension:
    return Dimension(_name(name), size, tile, cores)


def _read_value(code: int, depth: int, mask: int, offset: int, nbytes: int) -> Value:
    return Value(_one_of(NAMES, code, "format"), _members(mask), depth, offset, nbytes)


def _read_instruction(code: int, turn: int, *fields: int) -> Instruction:
    inputs, outputs, placed, masked, rank, indices, numbers, operand, parameter, base = fields[:10]
    if (
        rank > MAX_DIMENSIONS
        or inputs > MAX_INPUTS
        or outputs > MAX_OUTPUTS
        or (indices > MAX_INDICES)
    ):
        raise ProgramError(
            f"an instruction counts {rank} strides, {inputs} inputs, {outputs} outputs and "
            f"{indices} indices; it can have {MAX_DIMENSIONS}, {MAX_INPUTS}, {MAX_OUTPUTS} and "
            f"{MAX_INDICES}"
        )
    lists = []
    at = 10
    for size, used in (
        (MAX_DIMENSIONS, rank),
        (MAX_INPUTS, inputs),
        (MAX_OUTPUTS, outputs),
        (MAX_INDICES, indices),
        (MAX_INDICES, indices),
    ):
        lists.append(tuple(fields[at : at + used]))
        at += size
    strides, sources, targets, index_strides, limits = lists
    return Instruction(
        _one_of(OP_NAMES, code, "instruction"),
        turn,
        tuple(Source(s, bool(numbers >> n & 1)) for n, s in enumerate(sources)),
        targets,
        Place(operand, base, strides, index_strides, limits, bool(masked)) if placed else None,
        parameter,
    )
