"""Importing: it starts nothing and loads nothing heavy; registering twice or with other parts."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import Run
from torch_spyre_ref import build_check

LIST_MODULES = """
import sys, threading
import torch
assert threading.active_count() == 1
print(" ".join(sys.modules))
"""

USE_LITTLE = """
import torch_spyre_ref
from torch_spyre_ref import backend
assert torch.spyre.is_available() and torch.spyre.device_count() == 2
assert torch.accelerator.is_available() and torch.accelerator.device_count() == 2
assert torch.device("spyre:1").index == 1 and torch.spyre.current_device() == 0
assert torch.spyre.get_device_name() and not torch.spyre._is_in_bad_fork()
torch.accelerator.synchronize(), torch.spyre.synchronize(1), torch.accelerator.empty_cache()
torch.spyre.memory_allocated(), torch.ones(2).is_pinned(), torch.manual_seed(3)
torch.accelerator.current_stream().query()
print(backend.current().started, torch.spyre.is_initialized())
torch.empty(1, device="spyre")
print(backend.current().started, torch.spyre.is_initialized())
import warnings
with warnings.catch_warnings(record=True, action="default") as caught:
    torch.ones(2, device="spyre").cumsum(0), torch.ones(2, device="spyre").cumsum(0)
print([warning.category.__name__ for warning in caught], torch.spyre.get_fallback_policy())
"""


def test_importing_starts_no_card_and_loads_no_compiler(run_python: Run) -> None:
    """Compared with torch alone; what asks no card starts none either."""
    alone = set(run_python(LIST_MODULES, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split())
    ours = run_python(LIST_MODULES + USE_LITTLE, TORCH_SPYRE_REF_FALLBACK=None)
    listed, *started, fallback = ours.splitlines()
    added = set(listed.split()) - alone
    assert "torch_spyre_ref._bridge" in added
    assert not [name for name in added if name.startswith(("torch._dynamo", "torch._inductor"))]
    assert not {"sympy", "triton", "networkx", "matplotlib", "jupytext"} & added
    assert started == ["False False", "True True"]
    assert fallback == "['FallbackWarning'] warn"  # invariant 9: never silent by default


@pytest.mark.parametrize("module", ["allocator", "device", "memory.api", "registration"])
def test_a_module_may_be_imported_before_torch(run_python: Run, module: str) -> None:
    out = run_python(
        f"""
        import sys
        import torch_spyre_ref.{module} as module
        import torch
        print(torch.spyre.device_count(), module is sys.modules["torch_spyre_ref.{module}"])
        """
    )
    assert out.strip() == "2 True"


def test_registering_again_and_with_other_parts(run_python: Run) -> None:
    out = run_python(
        """
        import dataclasses, gc
        import torch, torch_spyre_ref
        from torch_spyre_ref.allocator import Allocator
        from torch_spyre_ref.device import DeviceDriver
        from torch_spyre_ref.emulator.regions import RegionTable
        from torch_spyre_ref.parts import Parts

        torch_spyre_ref.register(), torch_spyre_ref.register(Parts()), torch_spyre_ref.register()
        kept = torch.ones(3, device="spyre")
        torch_spyre_ref.register()
        torch_spyre_ref.register(Parts())
        print(kept.add(1).tolist())

        class MyAllocator(Allocator):
            def allocate(self, nbytes, device, *arguments, **options):
                print("my allocator gives", nbytes)
                return super().allocate(nbytes, device, *arguments, **options)

        class MyDriver(DeviceDriver):
            def device_count(self):
                return 1

        class MyTable(RegionTable):
            def acquire(self, size, domain):
                print("my table gives a region of domain", domain)
                return super().acquire(size, domain)

        mine = Parts(device_driver=MyDriver, allocator=MyAllocator, region_table=MyTable)
        try:
            torch_spyre_ref.register(mine)
        except RuntimeError as error:
            print(error)
        print(kept.tolist())
        del kept
        torch_spyre_ref.register(mine)
        print(torch.empty(3, device="spyre").fill_(5).tolist())
        print(torch.accelerator.device_count(), torch.spyre.device_count())
        torch_spyre_ref.register()  # asks for nothing: what is installed stays
        torch.empty(4, device="spyre")
        torch_spyre_ref.register(Parts())
        torch.empty(5, device="spyre:1")
        """
    )
    lines = out.splitlines()
    assert lines[0] == "[2.0, 2.0, 2.0]"
    assert lines[1].startswith("cannot install other parts while tensors live")
    assert lines[2] == "[1.0, 1.0, 1.0]"
    assert lines[3:5] == ["my allocator gives 12", "my table gives a region of domain 0"]
    assert lines[5:] == ["[5.0, 5.0, 5.0]", "1 1", "my allocator gives 16"]


def test_an_extension_for_another_torch_is_refused_before_it_is_loaded(run_python: Run) -> None:
    out = run_python(
        """
        import sys
        import torch, torch_spyre_ref
        from torch_spyre_ref import _build, backend
        try:
            torch.ones(2, device="spyre")
        except RuntimeError as error:
            print("no device" if "spyre" in str(error) else error)
        try:
            backend.current()
        except RuntimeError as error:
            print(error)
        built, _build.TORCH_VERSION = _build.TORCH_VERSION, "2.99.0"
        for _ in range(2):
            try:
                torch_spyre_ref.register()
            except ImportError as error:
                print(error)
        assert "torch_spyre_ref._bridge" not in sys.modules
        _build.TORCH_VERSION = built
        torch_spyre_ref.register()
        print(torch.ones(2, device="spyre").tolist())
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    lines = out.splitlines()
    assert lines[0] == "no device"
    assert lines[1].startswith("No spyre backend is registered: call torch_spyre_ref.register()")
    assert lines[2] == lines[3]
    assert "was built for torch 2.99.0" in lines[2] and "pip install" in lines[2]
    assert lines[4] == "[1.0, 1.0]"


def test_another_torch_than_the_built_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    with pytest.raises(ImportError, match=r"but torch 9\.9\.9 is running"):
        build_check.check_build()


def test_an_extension_that_was_never_built_is_missed_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build_check.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"has not been built.*pip install"):
        build_check.check_build()
