// The CPU's generators, borrowed for one call of a random op.
#pragma once

#include <ATen/core/Generator.h>

namespace spyre {

at::Generator new_cpu_generator(uint64_t seed);

// Seeds the CPU's default generator for a scope and puts its state back: for the few random ops
// that take no generator (`native_dropout`). One such scope exists at a time in a process.
class SeededCpu {
 public:
  explicit SeededCpu(uint64_t seed);
  ~SeededCpu();
  SeededCpu(const SeededCpu&) = delete;
  SeededCpu& operator=(const SeededCpu&) = delete;

 private:
  c10::intrusive_ptr<c10::TensorImpl> state_;
};

}  // namespace spyre
