// For tests of transfers: both pools with random bytes, and where the bytes of a token lie, told
// from the layouts' descriptions alone.
#pragma once

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kv/transfer/transfer.h"

namespace attune::kv::test {

struct Shape {
  std::string name;
  KvGeometry geometry;
};

inline KvGeometry geometry(int32_t kv_heads, int32_t dim, int32_t page_size, PageOrder order,
                           int32_t layers = 3, tensor::DType dtype = tensor::DType::kBF16) {
  return {.layer = {.kv_heads = kv_heads, .k_dim = dim, .v_dim = dim, .dtype = dtype},
          .layers = layers,
          .page_size = page_size,
          .order = order};
}

// A latent row of `bytes` bytes a token, as MLA's caches have it.
inline KvGeometry latent(int32_t bytes, int32_t page_size, int32_t layers = 3) {
  return {.layer = {.kv_heads = 1,
                    .k_dim = bytes,
                    .v_dim = bytes - bytes / 9,
                    .dtype = tensor::DType::kF8E4M3,
                    .v_in_k = true},
          .layers = layers,
          .page_size = page_size};
}

inline std::vector<Shape> shapes() {
  using enum PageOrder;
  KvGeometry two_dims = geometry(2, 64, 16, kHeadMajor);
  two_dims.layer.v_dim = 48;
  std::vector<Shape> all = {
      {"llama3_8b", geometry(8, 128, 64, kHeadMajor, 2)},
      {"token_major", geometry(8, 128, 16, kTokenMajor)},
      {"page_of_one", geometry(8, 128, 1, kHeadMajor)},
      {"one_head_f32", geometry(1, 64, 16, kHeadMajor, 5, tensor::DType::kF32)},
      {"k_and_v_differ", two_dims},
      {"mla_64", latent(1152, 64)},
      {"mla_1", latent(1152, 1)}};
  for (int32_t bytes : {656, 584, 132, 1})  // D-34
    for (int32_t page : {1, 16, 64})
      all.push_back(
          {"odd_" + std::to_string(bytes) + "_page_" + std::to_string(page), latent(bytes, page)});
  return all;
}

inline std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, std::min<size_t>(8, bytes.size() - i));
  }
  return bytes;
}

// Offsets of one token's K or V of one head in one layer, from a pool's start.
inline int64_t device_offset(const KvGeometry& g, int32_t slots, bool layers_apart, int32_t slot,
                             int32_t layer, bool v, int32_t head, int32_t token) {
  const int64_t e = g.elem_bytes(), dim = (v ? g.layer.v_dim : g.layer.k_dim) * e;
  const int64_t piece = layers_apart ? (int64_t{layer} * slots + slot) * g.piece_bytes()
                                     : (int64_t{slot} * g.layers + layer) * g.piece_bytes();
  const int64_t row = g.order == PageOrder::kHeadMajor ? int64_t{head} * g.page_size + token
                                                       : int64_t{token} * g.layer.kv_heads + head;
  return piece + (v ? g.k_bytes() : 0) + row * dim;
}
inline int64_t host_offset(const KvGeometry& g, HostLayout layout, int32_t slots, int32_t slot,
                           int32_t layer, bool v, int32_t head, int32_t token) {
  if (layout != HostLayout::kPageFirst)  // pieces as on a device of that order
    return device_offset(g, slots, layout == HostLayout::kLayerFirst, slot, layer, v, head, token);
  const int64_t e = g.elem_bytes(), k = g.layer.k_dim * e, h = g.layer.kv_heads;
  const int64_t strip = g.layer.v_in_k ? h * k : h * (k + g.layer.v_dim * e);
  const int64_t at = ((int64_t{slot} * g.page_size + token) * g.layers + layer) * strip;
  return at + (v ? h * k + head * g.layer.v_dim * e : head * k);
}

// Calls fn(device offset, host offset, bytes) for every row of a page.
template <typename Fn>
void for_rows(const KvGeometry& g, HostLayout layout, int32_t host_slots, int32_t device_slots,
              bool layers_apart, ops::KvCopyPage page, Fn fn) {
  for (int32_t layer = 0; layer < g.layers; ++layer)
    for (int v = 0; v < (g.layer.v_in_k ? 1 : 2); ++v)
      for (int32_t head = 0; head < g.layer.kv_heads; ++head)
        for (int32_t token = 0; token < g.page_size; ++token)
          fn(device_offset(g, device_slots, layers_apart, page.device, layer, v, head, token),
             host_offset(g, layout, host_slots, page.host, layer, v, head, token),
             (v ? g.layer.v_dim : g.layer.k_dim) * g.elem_bytes());
}

// `count` pages with different slots on each side; slots next to each other are among them.
inline std::vector<PageCopy> random_pages(int32_t count, int32_t host_slots, int32_t device_slots,
                                          uint32_t seed) {
  std::mt19937 random(seed);
  const auto some = [&](int32_t slots) {
    std::vector<int32_t> all(static_cast<size_t>(slots));
    for (int32_t i = 0; i < slots; ++i) all[i] = i;
    for (size_t i = 0; i + 4 < all.size(); i += 4)  // in runs of up to four
      std::swap_ranges(&all[i], &all[i] + 4, &all[random() % (all.size() / 4) * 4]);
    return all;
  };
  const std::vector<int32_t> host = some(host_slots), device = some(device_slots);
  std::vector<PageCopy> pages;
  for (int32_t i = 0; i < count; ++i) pages.push_back({HostSlot(host[i]), DeviceSlot(device[i])});
  return pages;
}

// Of the page at this address; -1: not told.
inline int numa_node_of(void* at) {
  int node = -1;
  syscall(SYS_get_mempolicy, &node, nullptr, 0, at, MPOL_F_NODE | MPOL_F_ADDR);
  return node;
}

}  // namespace attune::kv::test
