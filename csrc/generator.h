// The card's random state, as at::Generator.
//
// Contract: c10::GeneratorImpl with a counter-based (Philox) state: a seed, and an offset that says
// how much has been drawn. What an offset counts is the caller's affair.
#pragma once

#include <ATen/core/Generator.h>

#include <utility>

#include "device.h"

namespace spyre {

const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

// Takes `count` from a card's generator: the seed, and the offset before. Atomic.
std::pair<uint64_t, uint64_t> reserve(const at::Generator& generator, uint64_t count);

}  // namespace spyre
