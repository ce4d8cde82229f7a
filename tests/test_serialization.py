"""Invariant 10: tensors that leave the process, or are copied whole, and find their card again."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import NUMBERS, same_bits, values


def saved(thing: object) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.float8_e5m2], ids=str)
def test_save_and_load_keep_dtype_view_and_card(dtype: torch.dtype) -> None:
    host = values((4, 6), torch.float32).to(dtype)
    card = host.to("spyre:1")
    file = saved({"all": card, "view": card.t()[1:4:2], "again": card})
    loaded = torch.load(file)
    assert all(tensor.device == card.device for tensor in loaded.values())
    assert same_bits(loaded["all"], host) and same_bits(loaded["view"], host.t()[1:4:2])
    assert loaded["view"].stride() == card.t()[1:4:2].stride()
    assert loaded["view"].untyped_storage().data_ptr() == loaded["all"].data_ptr()
    assert loaded["all"].data_ptr() == loaded["again"].data_ptr() != card.data_ptr()


@pytest.mark.parametrize(
    ("location", "device"),
    [
        ("cpu", "cpu"),
        ("spyre", "spyre:0"),
        ("spyre:0", "spyre:0"),
        (torch.device("spyre:1"), "spyre:1"),
        ({"spyre:1": "spyre:0"}, "spyre:0"),
        ({"spyre:1": "cpu"}, "cpu"),
        (lambda storage, tag: storage.spyre(0) if tag == "spyre:1" else None, "spyre:0"),
        (lambda storage, tag: storage, "cpu"),
        (None, "spyre:1"),
    ],
    ids=str,
)
@pytest.mark.parametrize("new_format", [True, False])
def test_map_location(location: Any, device: str, new_format: bool) -> None:
    host, file = values((3, 5), torch.float32), io.BytesIO()
    torch.save(host.to("spyre:1"), file, _use_new_zipfile_serialization=new_format)
    file.seek(0)
    loaded = torch.load(file, map_location=location)
    assert loaded.device == torch.device(device)
    assert loaded.cpu().equal(host)


def test_a_cpu_file_is_loaded_onto_a_card(tmp_path: Any) -> None:
    host = values((3, 5), torch.float32)
    torch.save({"x": host}, tmp_path / "file")
    for mapped in (False, True):
        loaded = torch.load(tmp_path / "file", map_location="spyre:1", mmap=mapped)["x"]
        assert loaded.device == torch.device("spyre:1") and same_bits(loaded, host)


def test_a_card_that_does_not_exist_is_named_when_a_file_asks_for_it() -> None:
    file = saved(torch.ones(2, device="spyre:1"))
    with pytest.raises((RuntimeError, ValueError), match="7"):
        torch.load(file, map_location="spyre:7")


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("through", [pickled, copy.deepcopy])
def test_pickle_and_deepcopy_keep_aliases_and_gradients(through: Callable[[Any], Any]) -> None:
    base = values((4, 6), torch.float32).to("spyre:1")
    parameter = torch.nn.Parameter(torch.ones(3, device="spyre:0"))
    parameter.sum().backward()
    found, view, twice, weight = through([base, base[1], base, parameter])
    assert found is twice and found.device == base.device and found.data_ptr() != base.data_ptr()
    assert view.equal(found[1]) and view.equal(base[1])
    if through is copy.deepcopy:  # pickle alone makes a storage of each view, on every device
        assert view.fill_(5).equal(found[1])
    assert found.fill_(6).ne(base).all()
    assert isinstance(weight, torch.nn.Parameter) and weight.device == parameter.device
    assert weight.grad is None or weight.grad.eq(1).all()


def test_copy_copy_and_clone() -> None:
    base = torch.ones(3, device="spyre")
    assert copy.copy(base).data_ptr() == base.data_ptr()
    assert base.clone().data_ptr() != base.data_ptr()
    module = torch.nn.Linear(2, 2).to("spyre:1")
    twin = copy.deepcopy(module)
    assert twin.weight.device == module.weight.device and twin.weight.equal(module.weight)
    assert twin.weight.data_ptr() != module.weight.data_ptr()


def test_state_dicts_cross_devices() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("spyre:1")
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(2, 3, device="spyre:1")).sum().backward()
    optimizer.step()
    file = saved({"module": module.state_dict(), "optimizer": optimizer.state_dict()})
    loaded = torch.load(file, map_location="cpu")
    for device in ("cpu", "spyre:0"):
        other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(device)
        other.load_state_dict(loaded["module"])
        assert other[0].weight.device == torch.device(device)
        assert other[0].weight.cpu().equal(module[0].weight.cpu())
        again = torch.optim.AdamW(other.parameters())
        again.load_state_dict(loaded["optimizer"])
        state = again.state_dict()["state"][0]
        assert state["exp_avg"].device == torch.device(device)


def test_numpy_takes_only_what_is_on_the_cpu() -> None:
    card = torch.ones(2, device="spyre")
    with pytest.raises(TypeError, match="spyre"):
        card.numpy()
    assert card.numpy(force=True).tolist() == [1.0, 1.0]
    assert card.cpu().numpy().tolist() == [1.0, 1.0]
