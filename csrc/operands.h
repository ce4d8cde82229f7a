// What stands on the CPU for the card tensors among an operator's arguments.
//
// Contract: the CPU's tensors have the card's values, sizes and order of dimensions, and overlap in
// memory wherever the card's do and one of them is written.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace spyre {

bool is_card(const at::Tensor& tensor);

// One card tensor among the arguments, and what stands for it on the CPU.
struct Operand {
  at::Tensor card;
  at::Tensor cpu;
  bool read = false;     // its bytes must be there before the kernel runs
  bool written = false;  // its bytes go back afterwards
};

class Operands {
 public:
  // A tensor that is an argument twice is one operand.
  void add(const at::Tensor& card, bool read, bool written);

  void copy_to_cpu();
  void write_back() const;

  // The CPU's tensor for a card's; any other tensor is its own.
  at::Tensor on_cpu(const at::Tensor& tensor) const;

 private:
  std::vector<Operand> all_;
  std::unordered_map<const at::TensorImpl*, size_t> places_;
};

// A new tensor on a card with the values of a CPU tensor, whose strides it takes where they are
// dense.
at::Tensor to_card(const at::Tensor& cpu, c10::DeviceIndex index);

}  // namespace spyre
