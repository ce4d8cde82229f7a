"""The data sheet: what one card is made of and how fast its parts are.

Every figure of ``CardSpec`` says where it comes from. A figure that no public source gives is
marked ``assumed``; results that depend on it (all virtual times do) are for comparing one design
with another, never for predicting the real card. Rates are bytes per virtual nanosecond, which
reads as GB/s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_BLOG = "PyTorch blog, 'Building Spyre as a Native PyTorch Device'"
_CARD_PAGE = "torch-spyre documentation, architecture/spyre_accelerator"
_ALLOCATOR_RFC = "torch-spyre RFC 0643, SpyreAllocator"
_ASSUMED = "assumed"


def _figure(value: int, unit: str, source: str) -> int:
    """A line of the data sheet, as a field."""
    line: int = field(default=value, metadata={"unit": unit, "source": source})
    return line


class Figure(NamedTuple):
    """One line of the data sheet."""

    name: str
    value: int
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class CardSpec:
    """The figures of one card; sizes in bytes, times in virtual ns, rates a virtual ns.

    Raises ``ValueError`` when the figures contradict one another.
    """

    cores: int = _figure(32, "cores", _BLOG)
    scratchpad: int = _figure(2 * MIB, "bytes a core", _BLOG)
    stick: int = _figure(128, "bytes", _BLOG)
    memory_limit: int = _figure(128 * GIB, "bytes", _BLOG)
    memory: int = _figure(16 * GIB, "bytes", _ASSUMED)
    domains: int = _figure(4, "memory domains", _ASSUMED)
    regions: int = _figure(8, "regions that fill the memory", _ASSUMED)
    vf_handles: int = _figure(8, "handles", f"{_ALLOCATOR_RFC} (a table of 8 to 16 entries)")
    pf_handles: int = _figure(512, "handles", _ASSUMED)
    interleave_grain: int = _figure(4 * KIB, "bytes", _ASSUMED)
    link_rate: int = _figure(64, "bytes/ns each way", f"{_CARD_PAGE} (PCIe 5.0 x16, nominal)")
    link_latency: int = _figure(1_000, "ns a transfer", _ASSUMED)
    move_rate: int = _figure(64, "bytes/ns", _ASSUMED)
    move_latency: int = _figure(500, "ns a move", _ASSUMED)
    callback_time: int = _figure(1_000, "ns a host callback", _ASSUMED)
    submit_time: int = _figure(1_000, "ns a submission", _ASSUMED)
    query_time: int = _figure(100, "ns a query", _ASSUMED)
    memory_rate: int = _figure(200, "bytes/ns, loads and stores of all cores", _ASSUMED)
    vector_rate: int = _figure(64, "elements/ns a core", _ASSUMED)
    special_rate: int = _figure(16, "elements/ns a core", _ASSUMED)
    reduce_rate: int = _figure(64, "elements/ns a core", _ASSUMED)
    index_rate: int = _figure(64, "elements/ns a core", _ASSUMED)
    random_rate: int = _figure(16, "elements/ns a core", _ASSUMED)
    matrix_rate: int = _figure(1_024, "products/ns a core", _ASSUMED)
    stage_latency: int = _figure(200, "ns to start a stage on all cores", _ASSUMED)

    def __post_init__(self) -> None:
        for line in self.figures():
            if line.value < 1:
                raise ValueError(f"card spec: {line.name} is {line.value}; it must be at least 1")
        if self.memory > self.memory_limit:
            raise ValueError(
                f"card spec: memory of {self.memory} bytes asked for, but the card takes at most "
                f"{self.memory_limit} bytes"
            )
        share = self.stick * self.domains * self.regions
        if self.memory % share:
            raise ValueError(
                f"card spec: memory of {self.memory} bytes cannot be dealt out evenly in sticks to "
                f"{self.domains} domains and {self.regions} regions; use a multiple of {share}"
            )
        if self.interleave_grain % self.stick:
            raise ValueError(
                f"card spec: an interleave grain of {self.interleave_grain} bytes is not a whole "
                f"number of {self.stick}-byte sticks"
            )

    @property
    def region(self) -> int:
        """Bytes in one region."""
        return self.memory // self.regions

    @property
    def domain(self) -> int:
        """Bytes in one memory domain."""
        return self.memory // self.domains

    # --8<-- [start:cost]
    def sticks(self, runs: int, run: int) -> int:
        """Sticks moved for ``runs`` contiguous runs of ``run`` bytes; each run rounds up."""
        return runs * -(-run // self.stick)

    def link_time(self, sticks: int) -> int:
        """Virtual ns that H2D or D2H needs for ``sticks`` sticks."""
        return self.link_latency - (-sticks * self.stick // self.link_rate)

    # --8<-- [end:cost]

    def move_time(self, sticks: int) -> int:
        """Virtual ns that a move or fill inside the card needs for ``sticks`` sticks."""
        return self.move_latency - (-sticks * self.stick // self.move_rate)

    def figures(self) -> Iterator[Figure]:
        """The data sheet, line by line, each with its unit and source."""
        for entry in fields(self):
            unit, source = entry.metadata["unit"], entry.metadata["source"]
            yield Figure(entry.name, getattr(self, entry.name), unit, source)
