"""Parts: the classes that a chapter, or anybody, puts in the place of the shipped ones."""

from __future__ import annotations

from tests.conftest import Run


def test_own_classes_serve_pytorch_at_every_layer_of_memory(run_python: Run) -> None:
    out = run_python(
        """
        from dataclasses import replace
        import torch, torch_spyre_ref
        from torch_spyre_ref import _bridge, backend
        from torch_spyre_ref.allocator import Allocator, CardMemory, RegionSpace, Space
        from torch_spyre_ref.emulator.regions import RegionTable
        from torch_spyre_ref.parts import Parts

        class Table(RegionTable): pass
        class Free(RegionSpace): pass
        class Mine(Space): region_space = Free
        class Memory(CardMemory): pass
        class Blocks(Allocator): pass

        before = torch.ones(3, device="spyre")
        mine = Parts(region_table=Table, space=Mine, card_memory=Memory, allocator=Blocks)
        try:
            torch_spyre_ref.register(parts=mine)
        except RuntimeError as error:
            print(str(error).split(":")[0])
        del before
        torch_spyre_ref.register(parts=mine)
        tensor = torch.tensor([0, 1, 2]).to("spyre:1")
        block = _bridge.allocation(tensor)
        memory = backend.current().memory
        print(type(memory.allocator).__name__, type(block.card).__name__)
        print(type(block.card.space).__name__, type(block.card.space.table).__name__)
        print({type(space).__name__ for space in block.card.space.regions.values()})
        print(tensor.tolist(), torch.spyre.memory_map(1).regions[0].total("live"))
        """
    )
    assert out.splitlines() == [
        "cannot install other parts while tensors live on the cards (here 1)",
        "Blocks Memory",
        "Mine Table",
        "{'Free'}",
        "[0, 1, 2] 128",
    ]
