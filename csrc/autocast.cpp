// Automatic mixed precision: which ops torch.autocast("spyre") casts, and to what.
//
// Contract: the AutocastPrivateUse1 dispatch key, whose kernels cast their arguments and call the
// op again below it. Which op belongs to which rule is core's choice for every device; ops that no
// rule names fall through (minimal.cpp).
#include <ATen/autocast_mode.h>

// Core's lists spell their signatures with these names.
using at::IntArrayRef;
using at::ScalarType;
using at::Tensor;
using c10::Scalar;

namespace {

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FLOAT32_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

// --8<-- [start:autocast]
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(FLOAT32_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(WIDEST)
}
// --8<-- [end:autocast]

}  // namespace
