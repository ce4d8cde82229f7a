"""Programs as bytes: they come back as they were, and bytes from anywhere do no harm."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.programs import Card
from tests.emulator.test_program_reductions import softmax
from torch_spyre_ref.emulator import Chunk, CompositeAddress, RegionFaultError
from torch_spyre_ref.emulator.assembly import Assembler
from torch_spyre_ref.emulator.program import (
    Location,
    Program,
    ProgramError,
    decode,
    encode,
    pack_address,
    pack_slot,
    parse,
    slot_bytes,
)


def everything() -> Program:
    """A program with every kind of record in it."""
    asm = Assembler("everything, größer")
    size, scale = asm.size_symbol(), asm.float_symbol()
    rows, columns = asm.dimension("rows", size * 2 + 1), asm.dimension("columns", 10, tile=4)
    x, i, w = asm.argument("x", "bfloat16"), asm.argument("i", "int64"), asm.argument("w", "bool")
    own = asm.job_memory("own", "float32", 256)
    with asm.stream(columns):
        at, mask = asm.load(i, {rows: 1}), asm.load(w, {columns: 1})
        v = asm.load(x, {columns: 1}, indices=[(at, 10, size)], mask=mask, other=-0.0)
        position, best = asm.reduce_all("argmax", v * scale)
    asm.store(own, {rows: 1}, best + asm.convert(position, "float32"))
    asm.stage()
    n = asm.dimension("n", size)
    u = asm.random("uniform", 3, size, asm.index(n), digits=11)
    asm.store(x, {n: 1}, u, indices=[(asm.load(i, {n: 1}), 1, size)], add=True)
    return asm.assemble()


def test_a_program_comes_back_as_it_was() -> None:
    for program in (everything(), softmax(5, 7).assemble()):
        data = encode(program)
        assert len(data) % 128 == 0
        assert parse(data) == program
        assert encode(parse(data)) == data


def test_minus_zero_and_the_types_of_numbers_survive() -> None:
    asm = Assembler("numbers")
    out = asm.argument("out", "float64")
    n = asm.dimension("n", 1)
    for value in (0.0, -0.0, 1.0, float("inf"), 1e-300, 2):
        asm.store(out, {n: 1}, value)
    values = [n.value for n in parse(encode(asm.assemble())).numbers]
    assert [repr(v) for v in values if repr(v) not in ("0", "1")] == [
        "0.0",
        "-0.0",
        "1.0",
        "inf",
        "1e-300",
        "2",
    ]


def test_the_same_bytes_are_decoded_once() -> None:
    data = encode(softmax(5, 7).assemble())
    assert decode(data) is decode(bytes(bytearray(data)))


@pytest.mark.parametrize("data", [b"", b"\0" * 128, b"\xff" * 4096, b"#!/bin/sh\n" * 50])
def test_what_is_no_program_is_refused(data: bytes) -> None:
    with pytest.raises(ProgramError, match=r"program"):
        decode(data)


@given(st.integers(0, 4096))
def test_a_program_cut_short_or_longer_is_refused(length: int) -> None:
    data = encode(everything())
    changed = data[:length] if length < len(data) else data + b"\0" * (length - len(data) + 1)
    with pytest.raises(ProgramError):
        parse(changed)


def mutations(data: bytes, count: int, seed: int) -> list[bytes]:
    source = random.Random(seed)
    made = []
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 8))):
            at = source.randrange(len(changed))
            changed[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        made.append(bytes(changed))
    return made


@pytest.mark.parametrize("which", ["everything", "softmax"])
def test_mutated_programs_give_clean_errors_or_run_within_their_memory(which: str) -> None:
    program = everything() if which == "everything" else softmax(5, 7).assemble()
    card = Card()
    patches = [card.place(np.zeros(400, np.uint8)) for _ in range(program.addresses)]
    job = CompositeAddress((Chunk(1, 1024, 1024),))
    free = card.memory.region(0)[patches[-1].address.chunks[0].offset + 512 :]
    free[:] = 0xA5
    slot = pack_slot(patches, [3, 0.5] if which == "everything" else [])
    refused = ran = 0
    tracemalloc.start()
    for data in mutations(encode(program), 1_000, seed=1):
        decode.cache_clear()
        try:
            decode(data).run(card.memory, slot, job)
            ran += 1
        except (ProgramError, RegionFaultError):
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused > 500
    assert ran > 20
    assert (free == 0xA5).all()
    assert peak < 64 << 20


@settings(max_examples=200)
@given(st.binary(min_size=768, max_size=768))
def test_a_slot_of_any_bytes_gives_clean_errors(slot: bytes) -> None:
    executable = decode(encode(softmax(5, 7).assemble()))
    card = Card()
    with pytest.raises((ProgramError, RegionFaultError)):
        executable.run(card.memory, slot[: executable.slot_bytes])


@given(st.data())
def test_a_slot_with_one_wrong_byte_stays_within_the_regions_of_the_card(
    data: st.DataObject,
) -> None:
    executable = decode(encode(softmax(5, 7).assemble()))
    card = Card()
    slot = bytearray(pack_slot([card.room(35, np.float32), card.room(35, np.float32)]))
    slot[data.draw(st.integers(0, len(slot) - 1))] = data.draw(st.integers(0, 255))
    try:
        executable.run(card.memory, bytes(slot))
    except (ProgramError, RegionFaultError) as error:
        assert str(error)


def test_an_unpatched_slot_says_what_is_wrong() -> None:
    executable = decode(encode(softmax(5, 7).assemble()))
    with pytest.raises(ProgramError, match="was the slot patched before it was fetched"):
        executable.run(Card().memory, bytes(executable.slot_bytes))
    with pytest.raises(ProgramError, match="takes a correction slot of 512 bytes"):
        executable.run(Card().memory, b"")


def test_the_layout_of_a_slot_is_little_endian_and_fixed() -> None:
    address = CompositeAddress((Chunk(1, 2, 4096), Chunk(3, 4, 4096)), 4096)
    descriptor = pack_address(address, 0x0102)
    assert len(descriptor) == 256
    assert descriptor[:8].hex() == "0200000000000000"
    assert descriptor[8:24].hex() == "0010000000000000" + "0201000000000000"
    assert descriptor[32:56].hex() == "01".ljust(16, "0") + "02".ljust(16, "0") + "0010".ljust(
        16, "0"
    )
    slot = pack_slot([Location(address, 0)], [-1, 1.0])
    assert len(slot) == slot_bytes(1, 2) == 384
    assert slot[256:272].hex() == "ff" * 8 + "000000000000f03f"


def test_arithmetic_that_does_not_fit_is_refused() -> None:
    asm = Assembler("numbers")
    size = asm.size_symbol()
    n = asm.dimension("n", size * size % (size - 3))
    out = asm.argument("out", "int8")
    asm.store(out, {n: 1}, 1)
    card, program = Card(), asm.assemble()
    with pytest.raises(ProgramError, match="divides 9 by 0"):
        card.run(program, [card.room(9, np.int8)], [3])
    with pytest.raises(ProgramError, match="does not fit in 64 bits"):
        card.run(program, [card.room(9, np.int8)], [1 << 40])
