"""Initcheck: reads of memory that was handed out, poisoned, and written by nobody since.

It keeps a second memory beside the card's, with a 1 for each byte that is still poison. A copy of
such bytes is as fresh as they are. A program is followed load by load and store by store: where a
mask or an index says which elements those are, the run itself has noted them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_spyre_ref.emulator.addresses import CompositeAddress
from torch_spyre_ref.emulator.memory import Memory, Visit
from torch_spyre_ref.emulator.operands import DeviceRange
from torch_spyre_ref.emulator.walk import locate

if TYPE_CHECKING:
    from torch_spyre_ref.runtime.pending import Pending


class Initcheck:
    """Which bytes of one card are still poison; ``visits`` is what its memory notes them in."""

    def __init__(self, region_bytes: int) -> None:
        self.visits: list[Visit] = []
        self._region_bytes = region_bytes
        self._shadow = Memory()
        self._attached: set[int] = set()

    def completed(self, entry: Pending) -> Iterator[tuple[DeviceRange, int]]:
        """The ranges that an operation read in poison, and how many bytes of each."""
        operation, dispatch = entry.operation, entry.work.dispatch
        if type(operation).__name__ == "D2D":
            self._attach(*operation.reads, *operation.writes)
            self._shadow.move(*operation.reads, *operation.writes)
            return
        if dispatch is None:
            yield from self._reads(operation.reads)
            self._writes(operation.writes, entry.work.unseen)
            return
        visits, self.visits[:] = self.visits[:], []
        for is_write, span, visitor in dispatch.accesses:
            if visitor is not None:
                mine = [visit for visit in visits if visit.visitor is visitor]
                if poison := self._visited(mine):
                    yield span, poison
            elif is_write:
                self._writes([span], False)
            else:
                yield from self._reads([span])

    def _reads(self, spans: Sequence[DeviceRange]) -> Iterator[tuple[DeviceRange, int]]:
        for span in spans:
            self._attach(span)
            if poison := int(self._shadow.read(span).sum()):
                yield span, poison

    def _writes(self, spans: Sequence[DeviceRange], is_poison: bool) -> None:
        for span in spans:
            self._attach(span)
            self._shadow.fill(span, b"\x01" if is_poison else b"\x00")

    def _visited(self, visits: Sequence[Visit]) -> int:
        """Follow the elements that an indirect load or store went to; poison that was read."""
        poison = 0
        for _, is_write, address, at, size in visits:
            for number, within in self._places(address, at, size):
                region = self._shadow.region(number)
                if is_write:
                    region[within] = 0
                else:
                    poison += int(region[np.unique(within)].sum())
        return poison

    def _places(
        self,
        address: CompositeAddress,
        at: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        size: int,
    ) -> Iterator[tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]]:
        """The bytes of ``size``-byte elements at logical ``at``, by region."""
        self._attach(DeviceRange.contiguous(address, 0, address.length))
        which, within = locate(address, (at[:, None] + np.arange(size)).reshape(-1))
        for index, chunk in enumerate(address.chunks):
            if (here := within[which == index]).size:
                yield chunk.region, here + chunk.offset

    def _attach(self, *spans: DeviceRange) -> None:
        for span in spans:
            for chunk in span.address.chunks:
                if chunk.region not in self._attached:
                    self._attached.add(chunk.region)
                    self._shadow.attach(chunk.region, self._region_bytes)
