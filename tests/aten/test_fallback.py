"""The fallback's books: policy, warnings, counters, and the report."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest
import torch

from torch_spyre_ref.aten import fallback


@pytest.fixture(autouse=True)
def clean_books() -> Iterator[None]:
    fallback.reset_fallback_report()
    with fallback.fallback_policy("silent"):
        yield
    fallback.reset_fallback_report()


def test_silent_counts_and_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fallback.count("aten::mm")
        fallback.count("aten::mm")
    assert fallback.fallback_report()["aten::mm"] == 2


def test_a_warning_names_op_reason_and_remedy_once_an_op() -> None:
    with fallback.fallback_policy("warn"), pytest.warns(fallback.FallbackWarning) as caught:
        for _ in range(3):
            fallback.count("aten::mm", "no program")
        fallback.count("aten::add.Tensor")
    texts = [str(warning.message) for warning in caught]
    assert [text.split()[0] for text in texts] == ["aten::mm", "aten::add.Tensor"]
    assert "ran on the CPU: no program." in texts[0]
    assert 'fallback_policy("silent")' in texts[0]
    assert "TORCH_SPYRE_REF_FALLBACK=silent" in texts[0]


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with fallback.fallback_policy("warn"), pytest.warns(fallback.FallbackWarning) as caught:
        fallback.count("aten::mm")
    assert caught[0].filename == __file__


def test_error_refuses_before_counting_and_says_how_to_allow() -> None:
    with fallback.fallback_policy("error"), pytest.raises(fallback.FallbackError) as caught:
        fallback.count("aten::mm", "no program")
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, NotImplementedError)
    message = str(caught.value)
    assert message.startswith("aten::mm would run on the CPU (no program)")
    assert "TORCH_SPYRE_REF_FALLBACK=warn" in message
    assert len(fallback.fallback_report()) == 0


def test_a_warning_made_an_error_stops_the_op_each_time() -> None:
    with fallback.fallback_policy("warn"), warnings.catch_warnings():
        warnings.simplefilter("error", fallback.FallbackWarning)
        for _ in range(2):
            with pytest.raises(fallback.FallbackWarning):
                fallback.count("aten::mm")
    assert fallback.fallback_report()["aten::mm"] == 0


def test_the_policy_is_put_back_after_an_exception() -> None:
    with pytest.raises(KeyError), fallback.fallback_policy("error"):
        raise KeyError
    assert fallback.get_fallback_policy() == "silent"


def test_an_unknown_policy_is_refused_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match="'loud' does not exist; choose from"):
        fallback.set_fallback_policy("loud")
    assert fallback.get_fallback_policy() == "silent"


def test_the_policy_holds_on_other_threads() -> None:
    errors: list[BaseException] = []

    def backward() -> None:
        try:
            fallback.count("aten::mm")
        except fallback.FallbackError as error:
            errors.append(error)

    with fallback.fallback_policy("error"):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    assert len(errors) == 1


def test_the_report_is_a_table_ordered_by_calls_then_name() -> None:
    for op, calls in (("aten::b", 2), ("aten::a", 2), ("aten::convolution", 11)):
        for _ in range(calls):
            fallback.count(op, "core has no CPU kernel" if "conv" in op else "no program")
    report = fallback.fallback_report()
    assert repr(report).splitlines() == [
        "op                 calls  reason",
        "aten::convolution     11  core has no CPU kernel",
        "aten::a                2  no program",
        "aten::b                2  no program",
    ]
    assert [row.op for row in report] == ["aten::convolution", "aten::a", "aten::b"]
    assert (len(report), report.calls, report["aten::never"]) == (3, 15, 0)


def test_an_empty_report_says_so() -> None:
    assert repr(fallback.fallback_report()) == "no fallbacks"


def test_a_report_is_a_snapshot() -> None:
    fallback.count("aten::mm")
    before = fallback.fallback_report()
    fallback.count("aten::mm")
    assert (before.calls, fallback.fallback_report().calls) == (1, 2)


def test_reset_empties_the_report_and_warns_anew() -> None:
    with fallback.fallback_policy("warn"):
        for _ in range(2):
            with pytest.warns(fallback.FallbackWarning):
                fallback.count("aten::mm")
            fallback.reset_fallback_report()
    assert len(fallback.fallback_report()) == 0


def test_threads_lose_no_count() -> None:
    def work() -> None:
        for _ in range(2000):
            fallback.count("aten::mm")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fallback.fallback_report()["aten::mm"] == 8000


def test_the_error_of_a_refused_op_reaches_python_unchanged() -> None:
    x = torch.ones(2, device="spyre")
    with (
        fallback.fallback_policy("error"),
        pytest.raises(fallback.FallbackError, match="aten::cumsum"),
    ):
        x.cumsum(0)
    assert x.cumsum(0).tolist() == [1.0, 2.0]


def test_a_backward_pass_follows_the_policy_of_its_caller() -> None:
    x = torch.ones(2, device="spyre", requires_grad=True)
    y = x.cumsum(0).sum()
    with fallback.fallback_policy("error"), pytest.raises(fallback.FallbackError):
        y.backward()


def test_an_op_may_say_why_it_falls_back() -> None:
    with fallback.because("the card is too small"):
        fallback.count("aten::mm")
    fallback.count("aten::mm")
    reasons = [row.reason for row in fallback.fallback_report()]
    assert reasons == ["no program", "the card is too small"]


def test_an_op_that_the_cpu_refuses_too_is_not_counted() -> None:
    with pytest.raises(KeyError), fallback.judged(lambda: "not traced"):
        fallback.count("aten::mm")
        raise KeyError
    assert len(fallback.fallback_report()) == 0
    with fallback.judged(lambda: "not traced"):
        fallback.count("aten::mm")
    assert [row.reason for row in fallback.fallback_report()] == ["not traced"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.bfloat16])
def test_printing_neither_warns_nor_counts_nor_is_refused(dtype: torch.dtype) -> None:
    tensors = [torch.ones(3, dtype=dtype, device="spyre"), torch.ones(0, 2, device="spyre")]
    for policy in ("warn", "error"):
        with fallback.fallback_policy(policy), warnings.catch_warnings():
            warnings.simplefilter("error")
            for x in tensors:
                assert "spyre:0" in f"{x!r} {x} {[x]}"
                str(x.new_full((2000,), 1).reshape(2, 1000))
    assert len(fallback.fallback_report()) == 0
