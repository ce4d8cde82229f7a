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


def test_own_classes_launch_and_fetch_programs(run_python: Run) -> None:
    out = run_python(
        """
        from pathlib import Path
        from tempfile import TemporaryDirectory
        import torch, torch_spyre_ref
        from tests.test_launch import add_program, add_spec
        from torch_spyre_ref import backend
        from torch_spyre_ref.emulator.fetch import Dispatch, FetchUnit
        from torch_spyre_ref.launch import Job, launch_jobplan, prepare_kernel
        from torch_spyre_ref.parts import Parts
        from torch_spyre_ref.spyrecode import write_artifact

        class Mine(Job): pass

        class Run(Dispatch):
            def start(self):
                print("starts", self.barrier)
                return super().start()

        class Unit(FetchUnit):
            def dispatch(self, source, barrier):
                return Run(self, source, barrier)

        torch_spyre_ref.register(parts=Parts(job=Mine, fetch_unit=Unit))
        a, b, c = (torch.full((2, 3), float(n), device="spyre") for n in range(3))
        with TemporaryDirectory() as folder:
            write_artifact(Path(folder, "add"), add_program(), add_spec())
            plan = prepare_kernel(Path(folder, "add"))
        for _ in range(2):
            launch_jobplan(plan, [b, b, c])
        with torch.spyre.sanitizer.expect("race"):
            launch_jobplan(plan, [b, c, a], barrier=False)
        print(type(plan.job).__name__, c.unique().tolist())
        """
    )
    assert out.splitlines() == ["starts True", "starts True", "starts False", "Mine [2.0]"]
