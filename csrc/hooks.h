// What torch's device-independent code asks of the accelerator.
//
// Contract: at::PrivateUse1HooksInterface of torch 2.13.
#pragma once

namespace spyre {

void register_hooks();

}  // namespace spyre
