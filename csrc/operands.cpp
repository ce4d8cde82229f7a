// What stands on the CPU for the card tensors among an operator's arguments: see operands.h.
#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_copy_from.h>

#include <algorithm>

#include "device.h"
#include "minimal.h"

namespace spyre {
namespace {

// Strides without gaps, the dimensions in the tensor's own order: what core gives a result.
std::vector<int64_t> dense_strides(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense()
             ? tensor.strides().vec()
             : at::infer_dense_strides(tensor.sizes(), tensor.strides());
}

at::Tensor empty_on_cpu(const at::Tensor& card) {
  return at::detail::empty_strided_cpu(card.sizes(), dense_strides(card), card.scalar_type());
}

// The tensor's bytes as they lie in memory: a conj or neg bit belongs to the reader.
at::Tensor without_bits(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? alias(tensor, tensor.scalar_type(), tensor.sizes(),
                                                     tensor.strides(), tensor.storage_offset())
                                             : tensor;
}

void copy_meaning(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) to._set_conj(true);
  if (from.is_neg()) to._set_neg(true);
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  if (from.numel() > 0)
    at::_copy_from(without_bits(from), without_bits(to), /*non_blocking=*/false);
}

// A copy of its own, dense, so that the result's strides come out as on the CPU.
void copy_alone(Operand& operand) {
  operand.cpu = empty_on_cpu(operand.card);
  if (operand.read) copy_bytes(operand.card, operand.cpu);
}

// The first and the last byte + 1 that a tensor reaches in its storage.
std::pair<int64_t, int64_t> extent(const at::Tensor& tensor) {
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  const auto start = tensor.storage_offset() * itemsize;
  return {start, start + static_cast<int64_t>(at::detail::computeStorageNbytes(
                             tensor.sizes(), tensor.strides(), itemsize))};
}

// Whether two elements may lie at one address. No false alarm for what slicing makes.
bool may_overlap_itself(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;
  for (int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  std::sort(dimensions.begin(), dimensions.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

// --8<-- [start:fallback-overlap]
// Operands that overlap in memory, of which one is written: the bytes they span are copied once,
// and the CPU's tensors overlap in them exactly as the card's do.
void copy_together(c10::ArrayRef<Operand*> operands, int64_t start, int64_t stop) {
  constexpr int64_t kLargestItem = 16;
  start -= start % kLargestItem;
  const auto& first = operands.front()->card;
  const at::Tensor buffer = at::detail::empty_strided_cpu({stop - start}, {1}, at::kByte);
  copy_bytes(alias(first, at::kByte, {stop - start}, {1}, start), buffer);
  for (auto* operand : operands) {
    const auto& card = operand->card;
    const auto itemsize = static_cast<int64_t>(card.itemsize());
    operand->cpu = alias(buffer, card.scalar_type(), card.sizes(), card.strides(),
                         card.storage_offset() - start / itemsize);
  }
}

// Puts every operand of one storage on the CPU.
void copy_storage(std::vector<Operand*>& operands) {
  std::sort(operands.begin(), operands.end(),
            [](const Operand* a, const Operand* b) { return extent(a->card) < extent(b->card); });
  for (size_t i = 0; i < operands.size();) {
    auto [start, stop] = extent(operands[i]->card);
    bool written = operands[i]->written;
    size_t end = i + 1;
    for (; end < operands.size() && extent(operands[end]->card).first < stop; ++end) {
      stop = std::max(stop, extent(operands[end]->card).second);
      written |= operands[end]->written;
    }
    const c10::ArrayRef<Operand*> cluster(operands.data() + i, end - i);
    const bool overlaps = cluster.size() > 1 || may_overlap_itself(cluster[0]->card);
    if (written && overlaps)
      copy_together(cluster, start, stop);
    else
      for (auto* operand : cluster) copy_alone(*operand);
    i = end;
  }
}
// --8<-- [end:fallback-overlap]

bool changes_size(const Operand& operand) {
  return operand.written && operand.cpu.numel() > 0 && operand.cpu.sizes() != operand.card.sizes();
}

// An out= result that would grow into a neighbour: the CPU's kernel, whose tensors lie apart, could
// not see it, and would have refused.
void refuse_to_grow_into(const Operand& result, const at::Tensor& other) {
  if (other.numel() == 0 || other.is_same(result.card) ||
      !result.card.storage().is_alias_of(other.storage()))
    return;
  const auto start = extent(result.card).first;
  const auto [from, to] = extent(other);
  TORCH_CHECK(from >= start + static_cast<int64_t>(result.cpu.nbytes()) || to <= start,
              "unsupported operation: some elements of the input tensor and the written-to tensor "
              "refer to a single memory location. Please clone() the tensor before performing the "
              "operation.");
}

// What the kernel wrote goes back into the same tensor, which takes an out= result's new shape.
void copy_back(const Operand& operand) {
  const auto& card = operand.card;
  const auto& cpu = operand.cpu;
  if (cpu.sizes() != card.sizes()) {
    resize_to(card, cpu.sizes());
    if (cpu.is_non_overlapping_and_dense())
      card.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
  }
  // linalg.lu_solve leaves a conj bit on its out= tensor, which the card's own does not have.
  if (cpu.is_conj() == card.is_conj() && cpu.is_neg() == card.is_neg())
    copy_bytes(cpu, card);
  else if (cpu.numel() > 0)
    at::_copy_from(cpu, card, /*non_blocking=*/false);
}

}  // namespace

bool is_card(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kCard;
}

void Operands::add(const at::Tensor& card, bool read, bool written) {
  const auto [place, is_new] = places_.try_emplace(card.unsafeGetTensorImpl(), all_.size());
  if (is_new) all_.push_back({card, {}});
  auto& operand = all_[place->second];
  operand.read |= read;
  operand.written |= written;
}

void Operands::copy_to_cpu() {
  std::unordered_map<const c10::StorageImpl*, std::vector<Operand*>> storages;
  for (auto& operand : all_) {
    if (operand.card._is_zerotensor())
      operand.cpu = empty_on_cpu(operand.card).zero_();
    else if (operand.card.numel() == 0)
      copy_alone(operand);
    else
      storages[operand.card.storage().unsafeGetStorageImpl()].push_back(&operand);
  }
  for (auto& [storage, operands] : storages) copy_storage(operands);
  for (auto& operand : all_) copy_meaning(operand.card, operand.cpu);
}

void Operands::write_back() const {
  for (const auto& result : all_)
    if (changes_size(result))
      for (const auto& other : all_) refuse_to_grow_into(result, other.card);
  for (const auto& operand : all_)
    if (operand.written) copy_back(operand);
}

at::Tensor Operands::on_cpu(const at::Tensor& tensor) const {
  return is_card(tensor) ? all_[places_.at(tensor.unsafeGetTensorImpl())].cpu : tensor;
}

at::Tensor to_card(const at::Tensor& cpu, c10::DeviceIndex index) {
  auto card = empty_strided_on(index, cpu.sizes(), dense_strides(cpu), cpu.scalar_type());
  copy_bytes(cpu, card);
  copy_meaning(cpu, card);
  return card;
}

}  // namespace spyre
