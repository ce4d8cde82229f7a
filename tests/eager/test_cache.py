"""What is a program of its own, and what is the same program again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from torch_spyre_ref import _bridge, backend, eager
from torch_spyre_ref.compiled.calls import Call
from torch_spyre_ref.compiled.ops import Op

Count = Callable[[], int]


def _ones(*shape: int, device: str = "spyre") -> torch.Tensor:
    return torch.ones(shape, device=device)


def test_a_sum_with_itself_and_with_another_are_one_program(compiled: Count) -> None:
    x, y = _ones(5), _ones(5) * 2
    before = compiled()
    assert (x + x)[0].item() == 2
    assert (x + y)[0].item() == 3
    assert (y + y)[0].item() == 4
    assert compiled() == before + 1


def test_numbers_are_no_part_of_a_program(compiled: Count) -> None:
    x = _ones(5)
    assert [(x + n)[0].item() for n in (1, 2, 1000)] == [2, 3, 1001]
    assert [(x * f)[0].item() for f in (0.5, -2.0)] == [0.5, -2.0]
    assert [torch.add(x, x, alpha=a)[0].item() for a in (2, 3)] == [3, 4]
    assert compiled() == 3


def test_a_number_that_a_trace_asks_for_is_part_of_it() -> None:
    x = _ones(3) * 3
    assert [x.pow(n)[0].item() for n in (2, 3, 1, 0)] == [9, 27, 3, 1]
    assert not len(torch.spyre.fallback_report())


@pytest.mark.parametrize("numbers", [(0.0, 2.5), (1.0, -2.5), (2.5, 1.0), (1, 3), (0, 2)])
def test_what_a_trace_asked_for_is_so_only_for_its_own_number(
    numbers: tuple[float, float],
) -> None:
    torch.spyre.clear_eager_cache()
    x, y = torch.arange(4.0), torch.arange(4.0).to("spyre")
    for number in numbers:
        less, on_card = (torch.sub(z, z + 1, alpha=number) for z in (x, y))
        assert torch.equal(on_card.cpu(), less)
        torch.testing.assert_close(y.var(0, correction=number).cpu(), x.var(0, correction=number))
        torch.testing.assert_close(y.norm(number).cpu(), x.norm(number))


def test_an_empty_cache_knows_nothing_of_what_traces_asked_for() -> None:
    norm = Op("aten::linalg_vector_norm")
    assert eager.kernel(norm, _never)(_ones(4), 2).item() == 2
    assert not norm.patched[1]
    torch.spyre.clear_eager_cache()
    assert norm.patched[1]


def _never(*_: object) -> None:
    raise AssertionError("it is no op for the CPU")


def test_cards_have_programs_of_their_own(compiled: Count) -> None:
    here, there = _ones(5, device="spyre:0"), _ones(5, device="spyre:1")
    for _ in range(2):
        assert (here + here).device == here.device
        assert (there + there).device == there.device
        with pytest.raises(RuntimeError, match="spyre:0 and spyre:1"):
            here + there
    assert compiled() == 2


def test_a_card_that_is_not_current_is_used_all_the_same() -> None:
    there = _ones(5, device="spyre:1")
    assert torch.accelerator.current_device_index() == 0
    assert (there * 3).device.index == 1
    assert torch.arange(4, device="spyre:1").device.index == 1


def test_growing_sizes_build_two_programs_an_op(compiled: Count) -> None:
    for size in range(2, 40):
        assert (_ones(size, 3) + 1).sum().item() == size * 6
    assert compiled() <= 4
    assert not len(torch.spyre.fallback_report())


def test_sizes_that_were_equal_by_chance_need_not_be(compiled: Count) -> None:
    for rows, inner, columns in ((3, 3, 3), (4, 4, 4), (2, 5, 7), (6, 2, 3)):
        product = _ones(rows, inner) @ _ones(inner, columns)
        assert product.shape == (rows, columns)
        assert (product == inner).all().item()
    assert not len(torch.spyre.fallback_report())


def test_strides_are_kept_where_sizes_grow() -> None:
    for size in (3, 5, 8, 13):
        numbers = torch.randn(7, size + 2)
        card = numbers.to("spyre")
        assert torch.equal((card[:, :size].t() + 1).cpu(), numbers[:, :size].t() + 1)


def test_a_decode_loop_compiles_a_bounded_number_of_times(compiled: Count) -> None:
    query, keys = torch.randn(1, 2, 1, 8).to("spyre"), torch.zeros(1, 2, 0, 8, device="spyre")
    counts = []
    for _ in range(24):
        keys = torch.cat([keys, torch.randn(1, 2, 1, 8).to("spyre")], 2)
        attention = torch.softmax(query @ keys.transpose(-1, -2) / 8**0.5, -1) @ keys
        counts.append(compiled())
    host = keys.cpu()
    wanted = torch.softmax(query.cpu() @ host.transpose(-1, -2) / 8**0.5, -1) @ host
    torch.testing.assert_close(attention.cpu(), wanted)
    assert counts[5:] == [counts[5]] * 19


@pytest.mark.parametrize("foreach", [False, True])
def test_steps_of_an_optimiser_compile_once(foreach: bool, compiled: Count) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 3), torch.randn(3)]
    mine = [torch.nn.Parameter(w.to("spyre")) for w in weights]
    theirs = [torch.nn.Parameter(w.clone()) for w in weights]
    counts = []
    steps = [torch.optim.AdamW(p, lr=0.1, foreach=foreach) for p in (mine, theirs)]
    rates = [torch.optim.lr_scheduler.ExponentialLR(step, 0.9) for step in steps]
    for _ in range(5):
        for parameters, step, rate in zip((mine, theirs), steps, rates, strict=True):
            for parameter in parameters:
                parameter.grad = parameter.detach() * 0.5 + 1
            step.step()
            rate.step()
        counts.append(compiled())
    assert counts == [counts[0]] * 5
    for mine_, theirs_ in zip(mine, theirs, strict=True):
        torch.testing.assert_close(mine_.detach().cpu(), theirs_.detach())
    assert not len(torch.spyre.fallback_report())


def test_a_hit_enqueues_what_a_launch_does() -> None:
    x = _ones(64)
    x + x
    torch.spyre.synchronize()
    timeline = backend.current().runtime.timeline
    start = len(timeline)
    x + x
    torch.spyre.synchronize()
    kinds = [row.kind for row in list(timeline)[start:]]
    assert [k for k in kinds if k != "Fill"] == ["HostCallback", "H2D", "Execute"]


def test_the_oldest_entry_goes_when_there_are_too_many() -> None:
    cache = eager.EagerCache(limit=2)
    op = Op("aten::neg")
    calls = [Call(op, (_ones(size),), {}) for size in (1, 2, 3)]
    for call in calls[:2]:
        cache.put(call.key, eager.Entry(call, None))  # type: ignore[arg-type]
    assert cache.find(calls[0].key)
    cache.put(calls[2].key, eager.Entry(calls[2], None))  # type: ignore[arg-type]
    assert cache.find(calls[0].key) and cache.find(calls[2].key)
    assert cache.find(calls[1].key) is None


def test_the_report_is_readable() -> None:
    x = _ones(2, 3)
    for _ in range(3):
        x + x
    torch.complex(x, x) * 2
    text = repr(torch.spyre.eager_cache())
    assert "of at most 4096 signatures" in text
    assert "aten::add.Tensor(float32 (2, 3), float32 (2, 3))  2 hits  1 kernel\n" in text
    assert "on the CPU: the card does not compute with complex64" in text


def test_rows_of_the_report_tell_what_differs() -> None:
    x = _ones(2, 3)
    x + 1, x + 2, x + 2.5
    x.norm(1), x.norm(2)
    x.int() % 7, x.int() % -3, x.int() % -5
    torch.cat([x, x], 1)
    rows = [row.signature for row in torch.spyre.eager_cache()]
    assert len(set(rows)) == len(rows)
    for row in (
        "aten::add.Tensor(float32 (2, 3), int)",
        "aten::add.Tensor(float32 (2, 3), float)",
        "aten::cat([float32 (2, 3), float32 (2, 3)], 1)",
    ):
        assert row in rows
    assert sum("remainder" in row for row in rows) == 3


def test_threads_that_meet_the_same_op_compile_it_once(compiled: Count) -> None:
    x = _ones(7)
    barrier, sums, errors = threading.Barrier(4), [], []

    def work() -> None:
        try:
            barrier.wait()
            for _ in range(5):
                sums.append((x * 2 + x).sum().item())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sums == [21.0] * 20
    assert compiled() == 3


def test_a_failing_compilation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _ones(5)
    memory = torch.accelerator.memory_allocated()
    families = eager.compiler()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(families, "program_for", fail)
        x.add_(1)
    assert x.tolist() == [1] * 5
    assert torch.accelerator.memory_allocated() == memory
    assert x.add_(1).tolist() == [2] * 5


def test_grown_memory_of_programs_can_be_taken_back() -> None:
    x = _ones(5)
    x + 1
    backend.current().programs(0).evict_all()
    assert (x + 1).tolist() == [2] * 5


def test_the_bridge_takes_arguments_apart_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    x, scalar = _ones(3, 4), torch.tensor(2.5)
    lists: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("add.Tensor", (x, x.t())),
        ("add.Tensor", (x, 2)),
        ("add.Tensor", (x, 2.5)),
        ("add.Tensor", (x, True)),
        ("add.Tensor", (x, scalar)),
        ("add.Tensor", (x, scalar.spyre())),
        ("add.Tensor", (x, torch.nn.Parameter(x))),
        ("sum.dim_IntList", (x, [0], True)),
        ("clamp", (x, None, 2.0)),
        ("roll", (x, [1], [0])),
        ("var.correction", (x, None)),
        ("_softmax", (x, 1, False)),
        ("gelu", (x,)),
    )
    for name, args in lists:
        op = Op(f"aten::{name}")
        quick = Call(op, args, {})
        with monkeypatch.context() as patch:
            patch.setattr(_bridge, "take_plain", lambda *lists: 0)
            slow = Call(op, args, {})
        assert quick.key == slow.key, name
        assert list(map(type, quick.key[3:])) == list(map(type, slow.key[3:]))
        assert quick.numbers == slow.numbers
        assert list(map(id, quick.tensors)) == list(map(id, slow.tensors))
