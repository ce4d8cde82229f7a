"""Eager ops under what users wrap around them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

Count = Callable[[], int]


def _twelve() -> torch.Tensor:
    return torch.arange(12.0).reshape(3, 4).to("spyre")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes(mode: Callable[[], object], compiled: Count) -> None:
    x = _twelve()
    wanted = (x * 2 + 1).cpu()
    before = compiled()
    with mode():  # type: ignore[attr-defined]
        result = x * 2 + 1
    assert torch.equal(result.cpu(), wanted)
    assert result.is_inference() == (mode is torch.inference_mode)
    assert compiled() == before


def test_the_first_call_may_be_in_inference_mode() -> None:
    x = _twelve()
    with torch.inference_mode():
        x.tan()
    y = torch.ones(3, 4, device="spyre", requires_grad=True)
    y.tan().sum().backward()
    assert y.grad is not None


def test_autocast_casts_above_and_programs_do_not_change(compiled: Count) -> None:
    x = _twelve()
    with torch.autocast("spyre", torch.float16):
        half = x @ x.t()
        assert half.dtype == torch.float16
        assert (x + 1).dtype == torch.float32
        with torch.autocast("spyre", enabled=False):
            assert (x @ x.t()).dtype == torch.float32
        assert x.softmax(1).dtype == torch.float32
    before = compiled()
    assert (x + 1).dtype == torch.float32
    again = x.half() @ x.t().half()
    assert compiled() == before
    assert torch.equal(again, half)


def test_a_default_device_or_dtype_does_not_disturb_a_trace() -> None:
    whole = torch.arange(3, device="spyre")
    with torch.device("spyre"):
        assert (torch.ones(3) + whole).tolist() == [1, 2, 3]
    assert (whole / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (whole / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_vmap_and_functional_gradients() -> None:
    x = _twelve()
    rows = torch.func.vmap(lambda row: row.softmax(0))(x)
    torch.testing.assert_close(rows.cpu(), x.cpu().softmax(1))
    gradient = torch.func.grad(lambda a: a.sin().sum())(x)
    torch.testing.assert_close(gradient.cpu(), x.cpu().cos())


def test_deepcopied_modules_compute_alike() -> None:
    x = _twelve()
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
    card = copy.deepcopy(model).to("spyre")
    twin = copy.deepcopy(card)
    torch.testing.assert_close(card(x).detach().cpu(), model(x.cpu()).detach())
    assert torch.equal(card(x), twin(x))


def test_negative_and_conjugate_views() -> None:
    x = _twelve()
    negative = torch._neg_view(x)
    assert torch.equal((negative + 1).cpu(), 1 - x.cpu())
    assert torch.equal(negative.half().cpu(), -x.cpu().half())


def test_interleaved_memory() -> None:
    with torch.spyre.placement("interleave"):
        spread = torch.randn(300, 70).to("spyre")
        result = (spread * 2).sum(1)
    torch.testing.assert_close(result.cpu(), (spread.cpu() * 2).sum(1))


def test_off_everything_runs_on_the_cpu_and_says_so(compiled: Count) -> None:
    x = _twelve()
    with torch.spyre.eager_mode("fallback"):
        assert torch.equal((x + 1).cpu(), x.cpu() + 1)
        assert torch.equal((x * 2.5 - 1).cpu(), x.cpu() * 2.5 - 1)
    assert compiled() == 0
    reasons = {row.reason for row in torch.spyre.fallback_report()}
    assert reasons == {"eager compilation is off"}
    with pytest.raises(ValueError, match="'loud' does not exist"), torch.spyre.eager_mode("loud"):
        pass


def test_the_environment_can_switch_it_off(run_python: Callable[..., str]) -> None:
    code = """
        import sys, torch
        x = torch.ones(3, device="spyre")
        result = (x + 1).tolist()
        print(result, len(torch.spyre.fallback_report()), "torch._inductor" in sys.modules)
    """
    assert run_python(code, TORCH_SPYRE_REF_EAGER="fallback") == "[2.0, 2.0, 2.0] 1 False\n"
    stderr = "TORCH_SPYRE_REF_EAGER is 'never', but must be 'compile' or 'fallback'"
    run_python(code, TORCH_SPYRE_REF_EAGER="never", status=1, stderr=stderr)


def test_importing_torch_loads_no_compiler(run_python: Callable[..., str]) -> None:
    code = """
        import sys, torch
        x = torch.ones(3, device="spyre").t().view(3)
        before = "torch._inductor" in sys.modules
        print(before, (x + 1).tolist(), "torch._inductor" in sys.modules)
    """
    assert run_python(code) == "False [2.0, 2.0, 2.0] True\n"


def test_what_has_no_program_says_why() -> None:
    torch.ones(3, dtype=torch.complex64, device="spyre") * 2
    torch.special.i0(torch.ones(3, device="spyre"))
    reasons = {row.op: row.reason for row in torch.spyre.fallback_report()}
    assert reasons["aten::mul.out"] == "the card does not compute with complex64"
    assert "no loops for aten.i0" in reasons["aten::i0.out"]


def test_a_refused_policy_refuses_what_has_no_program() -> None:
    x = _twelve()
    with torch.spyre.fallback_policy("error"):
        assert (x + 1).sum().item() == 78
        with pytest.raises(RuntimeError, match=r"aten::cumsum.* would run on the CPU"):
            x.cumsum(0)
        with pytest.raises(RuntimeError, match="size of tensor a"):
            x + torch.ones(5, device="spyre")


def test_printing_compiles_nothing(compiled: Count) -> None:
    x = _twelve()
    assert "spyre:0" in repr(x)
    assert compiled() == 0


def test_in_a_graph_ops_are_their_parts() -> None:
    x = _twelve()
    targets: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> object:
        targets.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    def work(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = F.layer_norm(F.linear(a, w), (5,)).softmax(1)
        heads = rows.view(1, 1, 3, 5)
        return F.scaled_dot_product_attention(heads, heads, heads)

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    from torch_spyre_ref.inductor.decompositions import decompositions

    aot = aot_autograd(
        fw_compiler=lambda g, i: make_boxed_func(backend(g, i)), decompositions=decompositions()
    )
    weight = torch.randn(5, 4).to("spyre")
    with torch.no_grad():
        whole = work(x, weight)
        parts = torch.compile(work, backend=aot)(x, weight)
    torch.testing.assert_close(parts.cpu(), whole.cpu())
    assert {"aten.mm.default", "aten.var_mean.correction", "aten.amax.default"} <= set(targets)
    assert not [t for t in targets if "norm" in t or "softmax" in t or "attention" in t]


def test_eager_and_torch_compile_at_once() -> None:
    x = _twelve()
    errors: list[BaseException] = []

    def eager() -> None:
        try:
            for size in range(2, 8):
                assert (torch.ones(size, device="spyre") + size).sum().item() == size * (size + 1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=eager)
    thread.start()
    result = torch.compile(lambda a: (a * 2).sin().sum(1))(x)
    thread.join()
    assert not errors
    torch.testing.assert_close(result.cpu(), (x.cpu() * 2).sin().sum(1))


def test_errors_of_users_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    x = _twelve()
    with pytest.raises(RuntimeError, match="must match the size"):
        x + torch.ones(7, device="spyre")
    assert capfd.readouterr().err == ""
    assert not len(torch.spyre.fallback_report())
