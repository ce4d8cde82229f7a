"""One table says what ops are made of: in a model, as single ops, and never for another device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.compile_fx import compile_fx

from tests.conftest import Run
from torch_spyre_ref.compiled.trace import trace

aten = torch.ops.aten


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to("spyre")


OPS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "argmax": (aten.argmax.default, lambda: (numbers(4, 5).t(),)),
    "all": (aten.all.default, lambda: (numbers(4, 5).to(torch.uint8),)),
    "addbmm": (aten.addbmm.default, lambda: (numbers(4, 5), numbers(2, 4, 3), numbers(2, 3, 5))),
    "cat": (lambda *all: aten.cat.default(all, 1), lambda: (numbers(4, 5), numbers(4, 2))),
    "layer norm": (
        lambda x: aten.native_layer_norm.default(x, [5], None, None, 1e-5)[0],
        lambda: (numbers(4, 5).half(),),
    ),
    "softmax": (lambda x: aten._softmax.default(x, -1, False), lambda: (numbers(4, 5),)),
}


def of_graph(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_the_same_parts_in_a_graph_as_alone(name: str) -> None:
    function, arguments = OPS[name]
    tensors = arguments()
    graphs: list[list[str]] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
        graphs.append(of_graph(graph))
        return graph

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=compiler)

    torch.compile(function, backend=backend)(*tensors)
    alone = trace(lambda *inputs: [function(*inputs)], tensors, []).graph
    alone.graph.eliminate_dead_code()
    assert graphs == [of_graph(alone)]


def test_the_first_graph_of_a_process_is_made_of_them(run_python: Run) -> None:
    code = """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        x = torch.randn(4, 5).t()
        print(torch.compile(torch.argmax)(x.to("spyre")).item() == x.argmax().item())
    """
    assert run_python(code, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1") == "True\n"


def test_graphs_for_the_cpu_are_as_they_were(run_python: Run) -> None:
    code = """
        import warnings
        warnings.simplefilter("ignore")
        import torch
        from torch._inductor.compile_fx import compile_fx
        from torch_spyre_ref.inductor.decompositions import register

        graphs = []

        def compiler(graph, inputs, **_):
            graphs.append(graph.print_readable(print_output=False))
            return graph

        def work(x, places):
            norm = torch.nn.functional.group_norm(x.half(), 1)
            turned = x.t().argmax(), (x > 0).byte().all(), torch.cat([x, x]), norm
            flags = torch.nn.functional.pad(x > 0, (1, 1), value=2)
            product = torch.addbmm(x, x[None], x[None]), torch.addmm(x, x, x, beta=2)
            put = torch._index_put_impl_(x.clone(), [places], x[0], False, True)
            return *turned, flags, *product, put, x.index_add(0, places, x)

        for _ in range(2):
            torch._dynamo.reset()
            backend = lambda graph, inputs: compile_fx(graph, inputs, inner_compile=compiler)
            torch.compile(work, backend=backend)(torch.randn(4, 4), torch.arange(4))
            register()
        print(len(graphs), graphs[0] == graphs[1])
    """
    assert run_python(code, TORCHINDUCTOR_FORCE_DISABLE_CACHES="1") == "2 True\n"
