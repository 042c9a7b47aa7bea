// Types of activations and cache, the cache's layout, and a page size that the user set.
#include "resolve/rules.h"

namespace attune::resolve {

using base::cat;
using tensor::DType;

namespace {

const char* device_word(const State& s) {
  return s.gpu() ? "this device" : "this CPU";
}

void dtype_auto(State& s, const char* id) {
  const DeviceInfo& device = s.in.device;
  s.out.activation_dtype = device.fast_bf16 ? DType::kBF16 : DType::kF32;
  s.reason(id, device.fast_bf16       ? "bfloat16: the device's bf16 products beat its float32 ones"
               : device.bf16_products ? "float32: this CPU's bf16 products are no faster"
                                      : "float32: this CPU has no bf16 products");
}

void dtype_set(State& s, const char* id) {
  const std::string& name = s.set().dtype;
  const DType dtype = tensor::parse_dtype(name).value_or(DType::kF32);
  const bool can = dtype == DType::kF32 || (dtype == DType::kBF16 && s.in.device.bf16_products) ||
                   (dtype == DType::kF16 && s.in.device.f16_products);
  s.out.activation_dtype = can ? dtype : DType::kF32;
  if (can)
    s.reason(id, name, ": --dtype");
  else
    s.conflict(id, {"--dtype"},
               cat("--dtype ", name, ": ", device_word(s), " has no ", name, " products"),
               "use --dtype float32 or auto");
}

void kv_dtype(State& s, const char* id) {
  const std::string& name = s.set().kv_cache_dtype;
  if (name == "auto") {
    s.out.kv_dtype = s.out.activation_dtype;
    s.reason(id, tensor::dtype_name(s.out.kv_dtype), ": as the activations");
    return;
  }
  const DType dtype = tensor::parse_dtype(name).value_or(DType::kF32);
  if (has(s.in.device.kv_dtypes, dtype)) {
    s.out.kv_dtype = dtype;
    s.reason(id, name, ": --kv-cache-dtype");
    return;
  }
  s.out.kv_dtype = s.out.activation_dtype;
  s.conflict(id, {"--kv-cache-dtype"},
             cat("--kv-cache-dtype ", name, ": ", device_word(s), " caches ",
                 join(s.in.device.kv_dtypes, tensor::dtype_name)),
             cat("use --kv-cache-dtype auto or one of these"));
}

void page_set(State& s, const char* id) {
  const int32_t size = s.set().page_size;
  s.out.page_size = size;
  if (is_page_size(size)) {
    s.reason(id, "page size ", size, ": --page-size");
    return;
  }
  int32_t below = 1;
  while (below * 2 < size && below * 2 <= kLargestPage) below *= 2;
  const std::string other = below < kLargestPage ? cat(" or ", below * 2) : "";
  s.conflict(id, {"--page-size"},
             cat("--page-size ", size, ": a page holds a power of two of tokens, ", kLargestPage,
                 " at most"),
             cat("use --page-size ", below, other));
}

void layout(State& s, const char* id) {
  s.out.kv_layout = "head_major";
  s.reason(id, s.mla() ? "head_major: one latent row per token, a page's rows together"
                       : "head_major: K and V of a page and layer lie together, head after head");
}

constexpr Rule kRules[] = {
    {"dtype", [](const State& s) { return s.set().dtype == "auto"; }, dtype_auto},
    {"dtype", [](const State& s) { return s.set().dtype != "auto"; }, dtype_set},
    {"kv-dtype", nullptr, kv_dtype},
    {"layout", nullptr, layout},
    {"S9", [](const State& s) { return s.set().page_size > 0; }, page_set},
};

}  // namespace

std::span<const Rule> type_rules() {
  return kRules;
}

}  // namespace attune::resolve
