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


def test_own_parts_compile_and_serve_ops(run_python: Run) -> None:
    out = run_python(
        """
        import os
        os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"  # it would serve what others traced
        import torch, torch_spyre_ref
        from torch_spyre_ref import eager
        from torch_spyre_ref.inductor.loop_tracer import LoopTracer
        from torch_spyre_ref.parts import Parts

        class Tracer(LoopTracer): pass

        def tracer(*args):
            made.add("tracer")
            return Tracer(*args)

        def kernels(aside):
            made.add("kernels")
            return {name: of_mine(k) for name, k in eager.kernels(aside).items()}

        def of_mine(kernel):
            def run(*args, **kwargs):
                made.add("an op")
                return kernel(*args, **kwargs)
            return run

        def compute():
            x = torch.ones(3).to("spyre")
            return ((x + 1) * 2).sum().item()

        made = set()
        print(compute(), torch.spyre.eager_cache().compiled)
        torch_spyre_ref.register(parts=Parts(loop_tracer=tracer, eager_kernels=kernels))
        print(compute(), torch.spyre.eager_cache().compiled, sorted(made))
        made.clear()
        torch_spyre_ref.register(parts=Parts())
        print(compute(), torch.spyre.eager_cache().compiled, sorted(made))
        print(torch.spyre.fallback_report())
        """
    )
    assert out.splitlines() == [
        "12.0 3",
        "12.0 3 ['an op', 'kernels', 'tracer']",
        "12.0 3 []",
        "no fallbacks",
    ]
