// What the card cannot do runs on the CPU: one boxed kernel for every operator without its own.
//
// Contract: a boxed fallback for PrivateUse1. The card's arguments are copied to the CPU, the CPU's
// kernel runs, what it wrote is copied back into the same tensors, and what it made goes to the
// card. `driver.fallback(op)` is asked first, and may warn or refuse.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/_copy_from.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cpu_random.h"
#include "device.h"
#include "driver.h"
#include "generator.h"
#include "minimal.h"

namespace spyre {
namespace {

bool is_card(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kCard;
}

// Whether an argument is written. Core's schemas hide three of them: batch normalisation updates
// its running statistics, and without this they would stay on the CPU and be lost.
bool is_written(const c10::FunctionSchema& schema, size_t position,
                c10::ArrayRef<c10::IValue> all) {
  const auto& argument = schema.arguments()[position];
  if (argument.alias_info()) return argument.alias_info()->isWrite();
  if (argument.name() != "running_mean" && argument.name() != "running_var") return false;
  if (schema.name() == "aten::batch_norm_update_stats") return true;
  return schema.name() == "aten::native_batch_norm" && all[5].toBool();
}

// One card tensor among the arguments, and what stands for it on the CPU.
struct Operand {
  at::Tensor card;
  at::Tensor cpu;
  bool read = false;     // its bytes must be there before the kernel runs
  bool written = false;  // its bytes go back afterwards
};

// --8<-- [start:fallback-copies]
at::Tensor empty_on_cpu(at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  return at::detail::empty_strided_cpu(size, stride, dtype);
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

// A copy of its own: dense, its dimensions in the same order in memory, so that the result's
// strides come out as on the CPU.
void copy_alone(Operand& operand) {
  const auto& card = operand.card;
  const auto stride = card.is_non_overlapping_and_dense()
                          ? card.strides().vec()
                          : at::infer_dense_strides(card.sizes(), card.strides());
  operand.cpu = empty_on_cpu(card.sizes(), stride, card.scalar_type());
  if (operand.read) copy_bytes(card, operand.cpu);
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

// Operands that overlap in memory, of which one is written: the bytes they span are copied once,
// and the CPU's tensors overlap in them exactly as the card's do.
void copy_together(c10::ArrayRef<Operand*> operands, int64_t start, int64_t stop) {
  constexpr int64_t kLargestItem = 16;
  start -= start % kLargestItem;
  const auto& first = operands.front()->card;
  const auto buffer = empty_on_cpu({stop - start}, {1}, at::kByte);
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

// What the kernel wrote goes back into the same tensor, which takes an out= result's new shape.
void write_back(const Operand& operand) {
  const auto& [card, cpu, read, written] = operand;
  if (cpu.sizes() != card.sizes()) {
    resize_to(card, cpu.sizes());
    if (cpu.is_non_overlapping_and_dense())
      card.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
  }
  copy_bytes(cpu, card);
}
// --8<-- [end:fallback-copies]

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op),
        schema_(op.schema()),
        stack_(stack),
        begin_(stack.size() - schema_.arguments().size()),
        arguments_(stack.begin() + static_cast<std::ptrdiff_t>(begin_), stack.end()) {}

  // --8<-- [start:fallback]
  void run() {
    refuse_views();
    find_target();
    for (size_t i = 0; i < arguments_.size(); ++i) check_and_collect(i);
    TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), name(),
                                " is not implemented for ", c10::get_privateuse1_backend(),
                                ", and the CPU, which would stand in, has no kernel for it either");
    tell_driver();
    const c10::DeviceGuard on_target(target_);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    copy_to_cpu();
    replace_arguments();
    call_cpu();
    for (const auto& operand : operands_)
      if (operand.written) write_back(operand);
    replace_results();
  }
  // --8<-- [end:fallback]

 private:
  const c10::OperatorName& name() const { return op_.operator_name(); }

  template <class Visit>
  static void each_tensor(const c10::IValue& value, Visit&& visit) {
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isList()) {
      const auto list = value.toListRef();
      if (list.empty() || !(list[0].isTensor() || list[0].isNone())) return;
      for (const auto& item : list)
        if (item.isTensor()) visit(item.toTensor());
    }
  }

  // A view must share memory with its base; a copy that came back from the CPU does not.
  void refuse_views() const {
    for (const auto& result : schema_.returns())
      TORCH_CHECK_NOT_IMPLEMENTED(
          !result.alias_info() || result.alias_info()->isWrite(), name(),
          " returns a view, which the CPU cannot make of card memory: it needs a kernel for ",
          c10::get_privateuse1_backend(), " that works on sizes and strides");
  }

  // The first card among the arguments decides: in `2 // b` the 2 is a CPU tensor, and comes first.
  void find_target() {
    std::optional<c10::Device> named, of_generator;
    for (const auto& value : arguments_) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (is_card(tensor) && !tensor_device_) tensor_device_ = tensor.device();
      });
      if (value.isDevice() && value.toDevice().type() == kCard)
        named = c10::Device(kCard, resolve(value.toDevice().index()));
      if (value.isGenerator() && value.toGenerator().device().type() == kCard)
        of_generator = value.toGenerator().device();
    }
    const auto found = named ? named : tensor_device_ ? tensor_device_ : of_generator;
    target_ = found.value_or(c10::Device(kCard, current_device()));
  }

  void check_and_collect(size_t position) {
    const auto& value = arguments_[position];
    const bool written = is_written(schema_, position, arguments_);
    // Indices may lie on the CPU, as on every device.
    const bool may_be_on_cpu = value.isList() && schema_.arguments()[position].name() == "indices";
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      check_device(position, tensor, written, may_be_on_cpu);
      if (is_card(tensor)) collect(position, tensor, written);
    });
    TORCH_CHECK_NOT_IMPLEMENTED(!value.isStorage(), name(),
                                " takes a storage, which the CPU cannot use in its place");
  }

  void check_device(size_t position, const at::Tensor& tensor, bool written, bool may_be_on_cpu) {
    if (!tensor_device_ || tensor.device() == *tensor_device_) return;
    if (tensor.is_cpu() && !written && (tensor.dim() == 0 || may_be_on_cpu)) return;
    TORCH_CHECK(false,
                "Expected all tensors to be on the same device, but found at least two "
                "devices, ",
                *tensor_device_, " and ", tensor.device(),
                "! (when checking argument for argument ", schema_.arguments()[position].name(),
                " in method ", name(), ")");
  }

  void collect(size_t position, const at::Tensor& tensor, bool written) {
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_quantized(), name(),
                                ": argument ", schema_.arguments()[position].name(), " has layout ",
                                tensor.layout(), "; ", c10::get_privateuse1_backend(),
                                " stores strided, unquantized tensors only");
    const auto [found, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), operands_.size());
    if (is_new) operands_.push_back({tensor, {}});
    auto& operand = operands_[found->second];
    operand.written |= written;
    // What an out= argument holds is never looked at.
    operand.read |= !(written && schema_.arguments()[position].kwarg_only());
  }

  void tell_driver() const {
    refuse_if_gone("the CPU fallback");
    Gil gil;
    const auto text = c10::toString(name());
    Ref op =
        checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
    driver()(Method::fallback, op.get());
  }

  void copy_to_cpu() {
    std::unordered_map<const c10::StorageImpl*, std::vector<Operand*>> storages;
    for (auto& operand : operands_) {
      if (operand.card._is_zerotensor()) {
        operand.cpu =
            empty_on_cpu(operand.card.sizes(), operand.card.strides(), operand.card.scalar_type());
        operand.cpu.zero_();
      } else if (operand.card.numel() == 0) {
        copy_alone(operand);
      } else {
        storages[operand.card.storage().unsafeGetStorageImpl()].push_back(&operand);
      }
    }
    for (auto& [storage, operands] : storages) copy_storage(operands);
    for (auto& operand : operands_) copy_meaning(operand.card, operand.cpu);
  }

  at::Tensor on_cpu(const at::Tensor& tensor) const {
    return is_card(tensor) ? operands_[index_.at(tensor.unsafeGetTensorImpl())].cpu : tensor;
  }

  void replace_arguments() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& value = arguments_[i];
      auto& slot = stack_[begin_ + i];
      if (value.isTensor()) {
        slot = on_cpu(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const auto& item : value.toListRef()) list.push_back(on_cpu(item.toTensor()));
        slot = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& item : value.toListRef())
          list.push_back(item.isTensor() ? std::make_optional(on_cpu(item.toTensor()))
                                         : std::nullopt);
        slot = std::move(list);
      } else if (value.isDevice() && value.toDevice().type() == kCard) {
        slot = c10::Device(c10::DeviceType::CPU);
      }
    }
  }

  // --8<-- [start:fallback-random]
  // Random ops draw from the card's generator: it gives the seed of a CPU generator for this call,
  // and the user's CPU generator is left as it was.
  void call_cpu() {
    const auto place = generator_argument();
    if (!place && !op_.hasTag(at::Tag::nondeterministic_seeded)) {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
      return;
    }
    const bool given = place && arguments_[*place].isGenerator();
    const auto generator =
        given ? arguments_[*place].toGenerator() : default_generator(target_.index());
    TORCH_CHECK(generator.device().type() != kCard || generator.device() == target_,
                "Expected a generator of ", target_, " but found one of ", generator.device());
    const auto [seed, offset] = reserve(generator, 1);
    at::Philox4_32 engine(seed, 0, offset);
    const uint64_t low = engine(), high = engine();
    const uint64_t cpu_seed = high << 32 | low;
    if (place) {
      stack_[begin_ + *place] = new_cpu_generator(cpu_seed);
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    } else {
      const SeededCpu seeded(cpu_seed);
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    }
  }
  // --8<-- [end:fallback-random]

  std::optional<size_t> generator_argument() const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& type = schema_.arguments()[i].type();
      const auto& inner =
          type->kind() == c10::TypeKind::OptionalType ? type->containedType(0) : type;
      if (inner->kind() == c10::TypeKind::GeneratorType) return i;
    }
    return std::nullopt;
  }

  at::Tensor to_card(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided && !result.is_quantized(), name(),
                                " gives a tensor of layout ", result.layout(), "; ",
                                c10::get_privateuse1_backend(),
                                " stores strided, unquantized tensors only: do this on the CPU");
    const auto stride = result.is_non_overlapping_and_dense()
                            ? result.strides().vec()
                            : at::infer_dense_strides(result.sizes(), result.strides());
    auto card = empty_strided_on(target_.index(), result.sizes(), stride, result.scalar_type());
    copy_bytes(result, card);
    copy_meaning(result, card);
    return card;
  }

  // What an in-place or out= op returns is the very tensor that it was given.
  const c10::IValue* returned_argument(const c10::Argument& result) const {
    if (!result.alias_info()) return nullptr;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto* info = schema_.arguments()[i].alias_info();
      if (info && *info == *result.alias_info()) return &arguments_[i];
    }
    return nullptr;
  }

  void replace_results() {
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      auto& slot = stack_[begin_ + i];
      if (const auto* argument = returned_argument(schema_.returns()[i])) {
        slot = *argument;
      } else if (slot.isTensor()) {
        slot = to_card(slot.toTensor());
      } else if (slot.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const auto& item : slot.toListRef()) list.push_back(to_card(item.toTensor()));
        slot = std::move(list);
      }
    }
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  const size_t begin_;
  const std::vector<c10::IValue> arguments_;
  std::optional<c10::Device> tensor_device_;  // where all card arguments lie
  c10::Device target_{kCard, 0};              // where results go
  std::vector<Operand> operands_;
  std::unordered_map<const at::TensorImpl*, size_t> index_;
};

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, *stack).run(); }

// --8<-- [start:fallback-registration]
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}
// --8<-- [end:fallback-registration]

}  // namespace
}  // namespace spyre
