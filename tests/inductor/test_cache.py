"""What was compiled in one process serves the next: the generated code carries the artifact."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Run

PROGRAM = """
    import warnings
    warnings.simplefilter("ignore")
    import torch
    from torch._dynamo.utils import counters
    x = torch.randn(20, 33)
    function = lambda x: (x * 2 + 1).softmax(-1) @ x.t()
    got = torch.compile(function)(x.to("spyre"))
    torch.testing.assert_close(got.cpu(), function(x))
    print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def test_a_second_process_launches_what_the_first_has_compiled(
    run_python: Run, tmp_path: Path
) -> None:
    first = run_python(PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    second = run_python(PROGRAM, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert first.split() == ["0", "1"]
    assert second.split() == ["1", "0"]


def test_the_passes_name_changes_with_the_packages_source() -> None:
    from torch_spyre_ref.inductor.graph_pass import SpyrePass, source_digest

    assert SpyrePass().uuid() == source_digest()
    assert len(source_digest()) == 64
