"""Addresses and the table of region handles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.strategies import addresses, places
from torch_spyre_ref.emulator import (
    CardMemoryExhausted,
    CardSpec,
    Chunk,
    CompositeAddress,
    HandleBudgetExhausted,
    Memory,
    Mode,
    RegionError,
    RegionTable,
)
from torch_spyre_ref.emulator.addresses import dealt

SPEC = CardSpec(memory=64 << 10, domains=4, regions=8, vf_handles=4, pf_handles=6)


def table(mode: Mode) -> tuple[RegionTable, Memory]:
    memory = Memory()
    return RegionTable(memory, SPEC, mode), memory


@given(addresses(), st.data())
def test_pieces_name_the_bytes_in_logical_order(
    address: CompositeAddress, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, address.length))
    stop = data.draw(st.integers(start, address.length))
    named = [
        (piece.region, piece.offset + byte)
        for piece in address.pieces(start, stop - start)
        for byte in range(piece.length)
    ]
    assert named == places(address)[start:stop]


@given(addresses(), st.data())
def test_spans_name_the_same_bytes_chunk_by_chunk(
    address: CompositeAddress, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, address.length))
    stop = data.draw(st.integers(start, address.length))
    spans = address.spans(start, stop)
    named = [(s.region, s.offset + byte) for s in spans for byte in range(s.length)]
    assert len(spans) <= len(address.chunks)
    assert sorted(named) == sorted(places(address)[start:stop])


@given(addresses())
def test_an_address_is_as_long_as_its_chunks_together(address: CompositeAddress) -> None:
    assert address.length == len(places(address))


def test_bytes_outside_an_address_have_no_pieces() -> None:
    address = CompositeAddress((Chunk(0, 128, 64), Chunk(1, 0, 64)))
    for offset, length in ((-1, 2), (0, 129), (128, 1), (4, -1)):
        with pytest.raises(ValueError, match="has 128 bytes"):
            address.pieces(offset, length)


def test_an_address_has_one_to_eight_chunks() -> None:
    chunk = Chunk(0, 0, 128)
    assert CompositeAddress((chunk,) * 8).length == 1024
    for count in (0, 9):
        with pytest.raises(ValueError, match=f"1 to 8 chunks, not {count}"):
            CompositeAddress((chunk,) * count)


def test_interleaved_chunks_must_be_as_long_as_dealing_makes_them() -> None:
    assert dealt(10, 3, 2) == [4, 4, 2]
    CompositeAddress((Chunk(0, 0, 4), Chunk(1, 0, 4), Chunk(2, 0, 2)), grain=2)
    with pytest.raises(ValueError, match=r"must be \[4, 4, 2\]"):
        CompositeAddress((Chunk(0, 0, 2), Chunk(1, 0, 4), Chunk(2, 0, 4)), grain=2)


def test_addresses_are_values() -> None:
    one, same = (CompositeAddress((Chunk(3, 128, 256),)) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    assert repr(one) == "CompositeAddress(r3[128:384])"
    two = CompositeAddress((Chunk(0, 0, 128), Chunk(1, 0, 128)), grain=128)
    assert repr(two) == "CompositeAddress(r0[0:128], r1[0:128], grain=128)"


def test_vf_ids_are_indices_and_pf_ids_are_physical_bases() -> None:
    expected: dict[Mode, list[int]] = {"vf": [0, 1, 2], "pf": [0, 16384, 24576]}
    for mode, ids in expected.items():
        regions, _ = table(mode)
        acquired = [regions.acquire(8192, domain) for domain in (0, 1, 1)]
        assert [region.id for region in acquired] == ids
        assert [region.handle for region in acquired] == [0, 1, 2]
        assert regions.live() == acquired


@pytest.mark.parametrize(("mode", "budget"), [("vf", 4), ("pf", 6)])
def test_handles_run_out_and_one_given_back_can_be_had_again(mode: Mode, budget: int) -> None:
    regions, _ = table(mode)
    acquired = [regions.acquire(128, 0) for _ in range(budget)]
    with pytest.raises(HandleBudgetExhausted, match=f"all {budget} region handles"):
        regions.acquire(128, 0)
    regions.release(acquired[1].id)
    assert regions.acquire(128, 0) == acquired[1]


@pytest.mark.parametrize("mode", ["vf", "pf"])
def test_memory_of_a_domain_runs_out_while_others_have_some(mode: Mode) -> None:
    regions, _ = table(mode)
    regions.acquire(SPEC.domain - 128, 2)
    with pytest.raises(CardMemoryExhausted, match="domain 2 has no free run"):
        regions.acquire(256, 2)
    assert regions.acquire(128, 2).domain == 2
    assert regions.acquire(SPEC.domain, 3).size == SPEC.domain


@pytest.mark.parametrize("mode", ["vf", "pf"])
def test_a_gap_between_regions_is_used_when_it_is_large_enough(mode: Mode) -> None:
    regions, _ = table(mode)
    first, second, _ = (regions.acquire(4096, 1) for _ in range(3))
    regions.release(first.id)
    regions.release(second.id)
    with pytest.raises(CardMemoryExhausted):
        regions.acquire(8320, 1)
    assert regions.acquire(8192, 1).handle == first.handle


@pytest.mark.parametrize("mode", ["vf", "pf"])
def test_regions_share_no_byte(mode: Mode) -> None:
    regions, memory = table(mode)
    acquired = [regions.acquire(8192, domain) for domain in (0, 0, 3, 3)]
    for number, region in enumerate(acquired):
        memory.region(region.id)[:] = number
    assert [int(memory.region(r.id).max()) for r in acquired] == [0, 1, 2, 3]
    assert [int(memory.region(r.id).min()) for r in acquired] == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "domain"), [(0, 0), (-128, 0), (100, 0), (128, 4), (128, -1)])
def test_a_request_that_never_makes_sense_is_refused(size: int, domain: int) -> None:
    regions, _ = table("vf")
    with pytest.raises(ValueError, match=f"{size} bytes in domain {domain}"):
        regions.acquire(size, domain)
    assert regions.live() == []


def test_a_region_is_given_back_once() -> None:
    regions, _ = table("vf")
    region = regions.acquire(128, 0)
    regions.release(region.id)
    with pytest.raises(RegionError, match="give each one back once"):
        regions.release(region.id)
