// What the card cannot do runs on the CPU: one boxed kernel for every operator without its own.
//
// Contract: a boxed fallback for PrivateUse1. The card's arguments are copied to the CPU, the CPU's
// kernel runs, what it wrote is copied back into the same tensors, and what it made goes to the
// card. `driver.fallback(op)` is asked first, and may warn or refuse.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "cpu_random.h"
#include "device.h"
#include "driver.h"
#include "generator.h"
#include "operands.h"

namespace spyre {
namespace {

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
    operands_.copy_to_cpu();
    replace_arguments();
    call_cpu();
    operands_.write_back();
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
    std::optional<c10::Device> named;
    for (const auto& value : arguments_) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (is_card(tensor) && !tensor_device_) tensor_device_ = tensor.device();
      });
      if (value.isDevice() && value.toDevice().type() == kCard)
        named = c10::Device(kCard, resolve(value.toDevice().index()));
      if (value.isGenerator()) generator_ = value.toGenerator();
    }
    if (named || tensor_device_)
      target_ = named ? *named : *tensor_device_;
    else
      target_ = generator_ ? generator_->device() : c10::Device(kCard, current_device());
    if (!generator_) return;
    TORCH_CHECK(generator_->device().type() == kCard, "Expected a '",
                c10::get_privateuse1_backend(), "' device type for generator but found '",
                generator_->device().type(), "'");
    TORCH_CHECK(generator_->device() == target_, "Expected a generator of ", target_,
                " but found one of ", generator_->device());
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
    // What an out= argument holds is never looked at.
    const bool is_out = written && schema_.arguments()[position].kwarg_only();
    operands_.add(tensor, /*read=*/!is_out, written);
  }

  void tell_driver() const {
    refuse_if_gone("the CPU fallback");
    Gil gil;
    const auto text = c10::toString(name());
    Ref op =
        checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
    driver()(Method::fallback, op.get());
  }

  void replace_arguments() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& value = arguments_[i];
      auto& slot = stack_[begin_ + i];
      if (value.isTensor()) {
        slot = operands_.on_cpu(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const auto& item : value.toListRef())
          list.push_back(operands_.on_cpu(item.toTensor()));
        slot = std::move(list);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& item : value.toListRef())
          list.push_back(item.isTensor() ? std::make_optional(operands_.on_cpu(item.toTensor()))
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
    const auto generator = generator_ ? *generator_ : default_generator(target_.index());
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

  at::Tensor moved(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided && !result.is_quantized(), name(),
                                " gives a tensor of layout ", result.layout(), "; ",
                                c10::get_privateuse1_backend(),
                                " stores strided, unquantized tensors only: do this on the CPU");
    return to_card(result, target_.index());
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
        slot = moved(slot.toTensor());
      } else if (slot.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const auto& item : slot.toListRef()) list.push_back(moved(item.toTensor()));
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
  std::optional<at::Generator> generator_;
  Operands operands_;
};

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, *stack).run(); }

// --8<-- [start:fallback-registration]
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}
// --8<-- [end:fallback-registration]

}  // namespace
}  // namespace spyre
