"""One card: its data sheet, its memory behind a table of regions, its pipelines, and what
feeds programs to its cores."""

from __future__ import annotations

from torch_spyre_ref.emulator.clock import Clock
from torch_spyre_ref.emulator.executables import Executables
from torch_spyre_ref.emulator.fetch import FetchUnit
from torch_spyre_ref.emulator.memory import Memory
from torch_spyre_ref.emulator.pipelines import Completed, Pipelines
from torch_spyre_ref.emulator.regions import Mode, RegionTable
from torch_spyre_ref.emulator.spec import CardSpec


class Card:
    """The emulated card ``index``; ``completed`` hears of every operation that ends on it."""

    def __init__(
        self,
        index: int,
        spec: CardSpec,
        clock: Clock,
        mode: Mode,
        completed: Completed,
        region_table: type[RegionTable] = RegionTable,
        fetch_unit: type[FetchUnit] = FetchUnit,
    ) -> None:
        self.index = index
        self.spec = spec
        self.memory = Memory()
        self.regions = region_table(self.memory, spec, mode)
        self.pipelines = Pipelines(clock, completed)
        self.executables = Executables(self.memory, spec)
        self.fetch = fetch_unit(self.executables)
        self.memory.on_detach = self.executables.forget

    def __repr__(self) -> str:
        return (
            f"Card({self.index}, {self.spec.memory >> 20} MiB, {len(self.regions.live())} regions)"
        )
