// The CPU's generators, borrowed for one call of a random op: see cpu_random.h.
#include "cpu_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <condition_variable>
#include <mutex>

#include "python.h"

namespace spyre {
namespace {

std::mutex turn;

// Taken without the GIL, which whoever holds the turn may need.
void take_turn() {
  if (turn.try_lock()) return;
  const WithoutGil released;
  turn.lock();
}

}  // namespace

at::Generator new_cpu_generator(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

SeededCpu::SeededCpu(uint64_t seed) {
  take_turn();
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  state_ = generator.unsafeGetGeneratorImpl()->get_state();
  generator.set_current_seed(seed);
}

SeededCpu::~SeededCpu() {
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard lock(generator.mutex());
    generator.unsafeGetGeneratorImpl()->set_state(*state_);
  }
  turn.unlock();
}

}  // namespace spyre
