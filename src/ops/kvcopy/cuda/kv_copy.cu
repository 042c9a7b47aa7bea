// Pages between device and pinned host memory by a few CTAs. On Hopper one warp each moves tiles by
// bulk copies through a ring of shared memory: global to shared to global, the data in no register.
// Elsewhere, and for sizes that are no multiples of 16 bytes, plain loads and stores of the widest
// words that the sizes allow.
//
// Stores to host memory are paced: once more of them are on their way than the link drains, they
// hold up everybody's memory traffic.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/kernel_util.cuh"
#include "ops/kvcopy/kvcopy.h"

namespace attune::ops::cuda {
namespace {

constexpr int kMostSlots = 32, kMostStores = 16;
constexpr uint32_t kPlainThreads = 256;

// A launch's parameters: the pages by value, so that they last as long as the kernel.
template <int kPages>
struct Args {
  KvCopyParams p;
  int32_t strip_bytes;  // of a token in a piece of the host's, where the layout changes
  int32_t rows;         // of a token on the device's side: K's, then V's
  int32_t tile_tokens;  // where the layout changes
  int32_t tile_bytes;   // at most
  int32_t tiles_per_piece;
  int32_t tiles;
  int32_t slots, stores;
  int64_t tile_clocks;  // between the starts of a CTA's stores; 0: none
  alignas(16) KvCopyPage pages[kPages];
};

struct Tile {
  char *host = nullptr, *device = nullptr;
  int32_t bytes = 0;  // 0: its page is not copied
  int32_t first_token = 0, tokens = 0;
};

__device__ bool is_known(const KvCopyParams& p, KvCopyPage page) {
  return page.host >= 0 && page.host < p.host_slots && page.device >= 0 &&
         page.device < p.device_slots;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void await(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
__device__ __forceinline__ void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void fetch(uint32_t to, const char* from, uint32_t bytes,
                                      uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void put(char* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

// Until at most kPending groups of this thread's stores are still reading, or being written.
template <int kPending>
__device__ __forceinline__ void await_stores(bool writes) {
  if (writes) {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
  } else {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
  }
}
template <int kPending = kMostStores>
__device__ __forceinline__ void await_stores(int pending, bool writes) {
  if constexpr (kPending == 0) {
    await_stores<0>(writes);
  } else if (pending >= kPending) {
    await_stores<kPending>(writes);
  } else {
    await_stores<kPending - 1>(pending, writes);
  }
}

// What a warp does with its tiles; all lanes call everything.
template <int kPages>
class Mover {
 public:
  __device__ Mover(const Args<kPages>& args, char* ring, const KvCopyPage* pages,
                   uint64_t* barriers)
      : a_(args),
        ring_(shared_address(ring)),
        pages_(pages),
        barriers_(shared_address(barriers)),
        lane_(static_cast<int>(threadIdx.x)) {}

  // A page that is not known is counted if `counting`: a tile is asked for twice.
  __device__ Tile tile(int32_t n, bool counting = false) const {
    const KvCopyParams& p = a_.p;
    const auto item = static_cast<uint32_t>(n) / static_cast<uint32_t>(a_.tiles_per_piece);
    const auto part = static_cast<int32_t>(n - item * a_.tiles_per_piece);
    const uint32_t layer = item / static_cast<uint32_t>(p.count);
    const KvCopyPage page = pages_[item - layer * p.count];
    Tile t;
    if (!is_known(p, page)) {
      if (counting && lane_ == 0 && layer == 0 && part == 0) atomicAdd_system(p.bad, 1);
      return t;
    }
    const int64_t l = p.first_layer + static_cast<int64_t>(layer);
    t.host = p.host + page.host * p.host_slot_stride + l * p.host_layer_stride;
    t.device = p.device + page.device * p.device_slot_stride + l * p.device_layer_stride;
    if (p.tokens == 0) {
      const int64_t at = int64_t{part} * a_.tile_bytes;
      t.host += at;
      t.device += at;
      t.bytes = static_cast<int32_t>(min(int64_t{a_.tile_bytes}, p.piece_bytes - at));
      return t;
    }
    t.first_token = part * a_.tile_tokens;
    t.tokens = min(a_.tile_tokens, p.tokens - t.first_token);
    t.bytes = t.tokens * a_.strip_bytes;
    return t;
  }

  __device__ void load(const Tile& t, int slot) const {
    if (lane_ == 0) expect(barrier(slot), t.bytes);
    __syncwarp();
    const uint32_t to = shared(slot), b = barrier(slot);
    const auto get = [&](char* global, uint32_t at, uint32_t bytes) {
      fetch(to + at, global, bytes, b);
    };
    a_.p.to_host ? for_device_runs(t, get) : for_host_runs(t, get);
  }

  __device__ void store(const Tile& t, int slot) const {
    const uint32_t from = shared(slot);
    const auto set = [&](char* global, uint32_t at, uint32_t bytes) {
      put(global, from + at, bytes);
    };
    a_.p.to_host ? for_host_runs(t, set) : for_device_runs(t, set);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  __device__ void await_load(int slot, uint32_t parity) const { await(barrier(slot), parity); }

 private:
  __device__ uint32_t barrier(int slot) const { return barriers_ + 8 * slot; }
  __device__ uint32_t shared(int slot) const { return ring_ + slot * a_.tile_bytes; }

  // fn(address, offset in the tile, bytes) of what lies together, by the lanes in turn.
  template <typename Fn>
  __device__ void for_host_runs(const Tile& t, Fn fn) const {
    if (a_.p.tokens == 0) {
      if (lane_ == 0 && t.bytes > 0) fn(t.host, 0, t.bytes);
      return;
    }
    for (int i = lane_; i < t.tokens; i += kWarp)
      fn(t.host + (t.first_token + i) * a_.p.host_token_stride, i * a_.strip_bytes, a_.strip_bytes);
  }
  template <typename Fn>
  __device__ void for_device_runs(const Tile& t, Fn fn) const {
    if (a_.p.tokens == 0) {
      if (lane_ == 0 && t.bytes > 0) fn(t.device, 0, t.bytes);
      return;
    }
    const KvCopyRows &k = a_.p.k, &v = a_.p.v;
    for (int i = lane_; i < t.tokens * a_.rows; i += kWarp) {
      const auto token =
          static_cast<int>(static_cast<uint32_t>(i) / static_cast<uint32_t>(a_.rows));
      const int row = i - token * a_.rows, v_row = row - k.count;
      const bool of_k = v_row < 0;
      const KvCopyRows& r = of_k ? k : v;
      fn(t.device + r.offset + (of_k ? row : v_row) * r.stride +
             (t.first_token + token) * r.token_stride,
         token * a_.strip_bytes + (of_k ? row * k.bytes : k.count * k.bytes + v_row * v.bytes),
         r.bytes);
    }
  }

  const Args<kPages>& a_;
  const uint32_t ring_;
  const KvCopyPage* const pages_;
  const uint32_t barriers_;
  const int lane_;
};

// The pages out of the parameters: all lanes at once, since one after the other each would take as
// long as a load of memory that is busy.
template <int kPages>
__device__ void gather_pages(const Args<kPages>& args, KvCopyPage* pages) {
  for (int i = static_cast<int>(threadIdx.x); 2 * i < args.p.count; i += kWarp) {
    uint4 two;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(two.x), "=r"(two.y), "=r"(two.z), "=r"(two.w)
                 : "l"(args.pages + 2 * i));
    reinterpret_cast<uint4*>(pages)[i] = two;
  }
}
#endif

// CTA b moves tiles b, b + gridDim.x, ...: loads run up to a ring ahead of stores.
template <int kPages>
__global__ void __launch_bounds__(kWarp) ring_copy(const __grid_constant__ Args<kPages> args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(16) KvCopyPage pages[kPages];
  __shared__ uint64_t barriers[kMostSlots];
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x < kMostSlots)
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barriers[threadIdx.x]))
        : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  gather_pages(args, pages);
  __syncwarp();
  const Mover<kPages> mover(args, ring, pages, barriers);
  const auto step = static_cast<int32_t>(gridDim.x);
  const int32_t first = static_cast<int32_t>(blockIdx.x), tiles = args.tiles;
  int32_t asked = first;
  for (int s = 0; s < args.slots && asked < tiles; ++s, asked += step)
    mover.load(mover.tile(asked, true), s);
  long long next = clock64() + args.tile_clocks * first / step;
  int slot = 0, freed = 0, stored = 0;
  uint32_t parity = 0;
  for (int32_t n = first; n < tiles; n += step) {
    const Tile t = mover.tile(n);
    mover.await_load(slot, parity);
    if (args.tile_clocks > 0) {
      long long now = clock64();
      while (now < next) now = clock64();
      next = max(next, now - args.tile_clocks) + args.tile_clocks;
    }
    mover.store(t, slot);
    if (++stored > args.stores) {  // the oldest of them has left its slot
      await_stores(args.stores, args.p.tuning.await_writes);
      __syncwarp();
      if (asked < tiles) mover.load(mover.tile(asked, true), freed);
      asked += step;
      if (++freed == args.slots) freed = 0;
    }
    if (++slot == args.slots) {
      slot = 0;
      parity ^= 1;
    }
  }
  await_stores<0>(true);
#endif
}

// Words of W bytes, each thread's a grid apart.
template <typename Word, int kPages>
__global__ void __launch_bounds__(kPlainThreads)
    plain_copy(const __grid_constant__ Args<kPages> args) {
  constexpr int kUnroll = 4;
  pdl_wait();
  pdl_trigger();
  const KvCopyParams& p = args.p;
  const int64_t piece = p.piece_bytes / int64_t{sizeof(Word)};
  const int64_t words = piece * p.count * p.layers, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; first < words;
       first += kUnroll * stride) {
    Word value[kUnroll];
    Word* to[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t w = first + u * stride;
      to[u] = nullptr;
      if (w >= words) continue;
      const int64_t item = w / piece;
      const auto layer = static_cast<int32_t>(item / p.count);
      const KvCopyPage page = args.pages[item - int64_t{layer} * p.count];
      int64_t at = (w - item * piece) * int64_t{sizeof(Word)}, host_at = at;
      if (!is_known(p, page)) {
        if (layer == 0 && at == 0) atomicAdd_system(p.bad, 1);
        continue;
      }
      if (p.tokens > 0) {
        const auto token = static_cast<int32_t>(at / args.strip_bytes);
        const auto in_strip = static_cast<int32_t>(at - int64_t{token} * args.strip_bytes);
        const int32_t all_k = p.k.count * p.k.bytes;
        const KvCopyRows& r = in_strip < all_k ? p.k : p.v;
        const int32_t in_rows = in_strip < all_k ? in_strip : in_strip - all_k;
        const int32_t row = in_rows / r.bytes;
        at = r.offset + row * r.stride + token * r.token_stride + (in_rows - row * r.bytes);
        host_at = token * p.host_token_stride + in_strip;
      }
      const int64_t l = p.first_layer + layer;
      char* host = p.host + page.host * p.host_slot_stride + l * p.host_layer_stride + host_at;
      char* device = p.device + page.device * p.device_slot_stride + l * p.device_layer_stride + at;
      value[u] = *reinterpret_cast<const Word*>(p.to_host ? device : host);
      to[u] = reinterpret_cast<Word*>(p.to_host ? host : device);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (to[u]) *to[u] = value[u];
  }
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, which, device);
  return value;
}

// The widest word, up to 16 bytes, that every run begins and ends with.
int64_t word_bytes(const KvCopyParams& p) {
  for (int64_t word = 16; word > 1; word /= 2)
    if (all_multiples(word,
                      {address(p.host), address(p.device), p.host_slot_stride, p.host_layer_stride,
                       p.device_slot_stride, p.device_layer_stride, p.piece_bytes,
                       p.tokens > 0 ? p.host_token_stride : 0, p.k.bytes, p.k.offset, p.k.stride,
                       p.k.token_stride, p.v.bytes, p.v.offset, p.v.stride, p.v.token_stride}))
      return word;
  return 1;
}

KvCopyTuning tuned(const KvCopyParams& p) {
  KvCopyTuning t = p.tuning;
  if (t.ctas == 0) t.ctas = p.to_host ? 4 : 6;
  if (t.tile_bytes == 0) t.tile_bytes = 16 << 10;
  if (t.slots == 0) t.slots = 6;
  if (t.stores == 0) t.stores = 3;
  return t;
}

template <int kPages>
Args<kPages> args_of(const KvCopyParams& p) {
  Args<kPages> a{.p = p};
  KvCopyTuning& t = a.p.tuning;
  t = tuned(p);
  a.rows = p.k.count + p.v.count;
  a.strip_bytes = p.k.count * p.k.bytes + p.v.count * p.v.bytes;
  a.tile_bytes = t.tile_bytes / 16 * 16;
  a.tiles_per_piece = static_cast<int32_t>(ceil_div(p.piece_bytes, a.tile_bytes));
  if (p.tokens > 0) {
    a.tile_tokens = std::clamp(a.tile_bytes / a.strip_bytes, 1, p.tokens);
    a.tile_bytes = a.tile_tokens * a.strip_bytes;
    a.tiles_per_piece = static_cast<int32_t>(ceil_div(p.tokens, a.tile_tokens));
  }
  a.tiles = p.count * p.layers * a.tiles_per_piece;
  const int fit = (device::kMostSharedBytes - 12 * 1024) / a.tile_bytes;
  a.slots = std::clamp(std::min(t.slots, fit), 2, kMostSlots);
  a.stores = std::clamp(t.stores, 1, std::min(a.slots - 1, kMostStores));
  if (t.bytes_per_second > 0)
    a.tile_clocks = static_cast<int64_t>(1e3 * attribute(cudaDevAttrClockRate) * a.tile_bytes *
                                         t.ctas / t.bytes_per_second);
  std::copy_n(p.pages, p.count, a.pages);
  return a;
}

template <typename Word, int kPages>
void launch_plain(const KvCopyParams& p, Stream& stream) {
  const Args<kPages> a = args_of<kPages>(p);
  launch_kernel(stream, "kv_copy by words",
                {.grid = static_cast<uint32_t>(2 * a.p.tuning.ctas), .block = kPlainThreads},
                {{"pages", p.count}, {"layers", p.layers}, {"to host", p.to_host}},
                plain_copy<Word, kPages>, a);
}

template <int kPages>
void launch_ring(const KvCopyParams& p, Stream& stream) {
  const Args<kPages> a = args_of<kPages>(p);
  const auto shared = static_cast<uint32_t>(a.slots * a.tile_bytes);
  cudaFuncSetAttribute(ring_copy<kPages>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(shared));
  launch_kernel(stream, "kv_copy",
                {.grid = static_cast<uint32_t>(std::min(a.p.tuning.ctas, a.tiles)),
                 .block = kWarp,
                 .shared_bytes = shared},
                {{"pages", p.count}, {"layers", p.layers}, {"to host", p.to_host}},
                ring_copy<kPages>, a);
}

template <int kPages>
void launch(const KvCopyParams& p, Stream& stream) {
  const int64_t word = word_bytes(p);
  const bool fits =
      2 * (p.k.count * p.k.bytes + p.v.count * p.v.bytes) < device::kMostSharedBytes - 12 * 1024;
  if (word == 16 && fits && attribute(cudaDevAttrComputeCapabilityMajor) >= 9)
    return launch_ring<kPages>(p, stream);
  switch (word) {
    case 16:
      return launch_plain<uint4, kPages>(p, stream);
    case 8:
      return launch_plain<uint2, kPages>(p, stream);
    case 4:
      return launch_plain<uint32_t, kPages>(p, stream);
    case 2:
      return launch_plain<uint16_t, kPages>(p, stream);
    default:
      return launch_plain<uint8_t, kPages>(p, stream);
  }
}

}  // namespace

void kv_copy(const KvCopyParams& p, Stream& stream) {
  ATTUNE_CHECK(p.count <= kMostKvCopyPages);
  if (p.count == 0 || p.layers == 0) return;
  constexpr int kFew = 128;
  p.count <= kFew ? launch<kFew>(p, stream) : launch<kMostKvCopyPages>(p, stream);
}

}  // namespace attune::ops::cuda
