// The card's operations in torch.profiler's traces.
//
// Contract: libkineto::IActivityProfiler as torch 2.13 ships it, and torch's registry of the one
// such profiler that a PrivateUse1 backend may have.
#pragma once

#include <cstdint>

namespace spyre {

// Tells torch of the profiler; from the first session on, torch.profiler asks it for sessions. Does
// nothing with a torch that was built without Kineto.
void register_profiler();

// The correlation id of the innermost op that this thread is in, as torch.profiler numbers them; 0
// outside any op, and where no session records.
int64_t correlation_id() noexcept;

}  // namespace spyre
