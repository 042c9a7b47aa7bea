// Pages between device and pinned host memory by a few CTAs. On Hopper their warps move tiles by
// bulk copies, each through a ring of shared memory: global to shared to global, the data in no
// register. Elsewhere, and for sizes that are no multiples of 16 bytes, plain loads and stores of
// the widest words that the sizes allow.
//
// Stores to host memory are paced: once more of them are on their way than the link drains, they
// hold up everybody's memory traffic.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/gemm/cuda/bulk_copy.cuh"
#include "ops/kernel_util.cuh"
#include "ops/kvcopy/kvcopy.h"

namespace attune::ops::cuda {
namespace {

constexpr int kMostSlots = 32, kMostStores = 16, kMostWarps = 8;
constexpr int32_t kLine = 128;  // bytes of one request to the host's memory
constexpr uint32_t kPlainThreads = 256;

// A launch's parameters: the pages by value, so that they last as long as the kernel.
template <int kPages>
struct Args {
  KvCopyParams p;
  int32_t strip_bytes;  // of a token in a piece of the host's, where the layout changes
  int32_t rows;         // of a token on the device's side: K's, then V's
  int32_t tile_tokens;  // where the layout changes, else kLine bytes each
  int32_t tile_bytes;   // at most
  int32_t tiles_per_piece;
  int32_t tiles;
  int32_t slots, stores;
  int32_t ring_offset;  // in shared memory, behind the pages and what is kept of tiles
  int64_t tile_clocks;  // between the starts of a warp's stores; 0: none
  int64_t late_clocks;  // that a warp may make up for
  alignas(16) KvCopyPage pages[kPages];
};

// A warp is a mover: of all tiles every movers-th one is its. What there is to know of a tile is
// worked out by a lane, for 32 tiles at once, and kept until the tile is stored.
struct alignas(16) Tile {
  char *host, *device;
};
struct TileSize {
  int32_t bytes;  // 0: its page is not copied
  int32_t first_token;
};
constexpr int kKept = 64;  // tiles: a batch of them, and as many as loads may be ahead of stores
static_assert(kKept >= kWarp + kMostSlots && kKept % kWarp == 0);
struct Kept {
  Tile tiles[kKept];
  TileSize sizes[kKept];
  uint64_t barriers[kMostSlots];
};

__device__ bool is_known(const KvCopyParams& p, KvCopyPage page) {
  return page.host >= 0 && page.host < p.host_slots && page.device >= 0 &&
         page.device < p.device_slots;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void put(char* to, const char* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(gemm::shared_address(from)), "r"(bytes)
               : "memory");
}
// Until at most `pending` groups of this thread's stores still read shared memory.
template <int kPending = kMostStores>
__device__ __forceinline__ void await_stores(int pending) {
  if constexpr (kPending > 0)
    if (pending < kPending) return await_stores<kPending - 1>(pending);
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// All lanes call everything.
template <int kPages, bool kStrips>
class Mover {
 public:
  __device__ Mover(const Args<kPages>& args, char* ring, const KvCopyPage* pages, Kept& kept,
                   int32_t first, int32_t step)
      : a_(args),
        ring_(ring),
        pages_(pages),
        kept_(kept),
        first_(first),
        step_(step),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        to_host_(args.p.to_host),
        tile_bytes_(args.tile_bytes) {}

  // Of this mover's tiles the ones from k on.
  __device__ void describe(int32_t k) const {
    const int64_t n = first_ + int64_t{k + lane_} * step_;
    if (n < a_.tiles) describe_one(static_cast<uint32_t>(n), (k + lane_) % kKept);
    __syncwarp();
  }

  __device__ void load(int32_t k, int slot) const {
    const TileSize size = kept_.sizes[k % kKept];
    const Tile tile = kept_.tiles[k % kKept];
    char* to = ring_ + slot * tile_bytes_;
    uint64_t* b = &kept_.barriers[slot];
    if (lane_ == 0) gemm::barrier_expect(b, size.bytes);
    if constexpr (!kStrips) {
      if (lane_ == 0 && size.bytes > 0)
        gemm::copy_row(to, to_host_ ? tile.device : tile.host, size.bytes, b);
    } else {
      __syncwarp();
      const auto get = [&](char* global, uint32_t at, uint32_t bytes) {
        gemm::copy_row(to + at, global, bytes, b);
      };
      to_host_ ? for_device_rows(tile, size, get) : for_host_strips(tile, size, get);
    }
  }

  __device__ void store(int32_t k, int slot) const {
    const TileSize size = kept_.sizes[k % kKept];
    const Tile tile = kept_.tiles[k % kKept];
    const char* from = ring_ + slot * tile_bytes_;
    if constexpr (!kStrips) {
      if (lane_ == 0 && size.bytes > 0) put(to_host_ ? tile.host : tile.device, from, size.bytes);
    } else {
      const auto set = [&](char* global, uint32_t at, uint32_t bytes) {
        put(global, from + at, bytes);
      };
      to_host_ ? for_host_strips(tile, size, set) : for_device_rows(tile, size, set);
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }

  __device__ void await_load(int slot, uint32_t parity) const {
    gemm::barrier_wait(&kept_.barriers[slot], parity);
  }

 private:
  __device__ void describe_one(uint32_t n, int at) const {
    const KvCopyParams& p = a_.p;
    const uint32_t item = n / static_cast<uint32_t>(a_.tiles_per_piece);
    const auto part = static_cast<int32_t>(n - item * a_.tiles_per_piece);
    const uint32_t layer = item / static_cast<uint32_t>(p.count);
    const KvCopyPage page = pages_[item - layer * p.count];
    if (!is_known(p, page)) {
      if (layer == 0 && part == 0) atomicAdd_system(p.bad, 1);
      kept_.sizes[at] = {0, 0};
      return;
    }
    const int64_t l = p.first_layer + static_cast<int64_t>(layer);
    Tile tile{p.host + page.host * p.host_slot_stride + l * p.host_layer_stride,
              p.device + page.device * p.device_slot_stride + l * p.device_layer_stride};
    if constexpr (kStrips) {
      const int32_t token = part * a_.tile_tokens;
      kept_.sizes[at] = {min(a_.tile_tokens, p.tokens - token) * a_.strip_bytes, token};
    } else {
      const int64_t offset = int64_t{part} * a_.tile_bytes;
      tile.host += offset;
      tile.device += offset;
      const int64_t left = p.piece_bytes - offset;
      kept_.sizes[at] = {static_cast<int32_t>(min(int64_t{a_.tile_bytes}, left)), 0};
    }
    kept_.tiles[at] = tile;
  }

  // fn(address, offset in the tile, bytes) of what lies together, by the lanes in turn.
  template <typename Fn>
  __device__ void for_host_strips(const Tile& tile, TileSize size, Fn fn) const {
    for (int i = lane_; i * a_.strip_bytes < size.bytes; i += kWarp)
      fn(tile.host + (size.first_token + i) * a_.p.host_token_stride, i * a_.strip_bytes,
         a_.strip_bytes);
  }
  template <typename Fn>
  __device__ void for_device_rows(const Tile& tile, TileSize size, Fn fn) const {
    const KvCopyRows &k = a_.p.k, &v = a_.p.v;
    const int32_t all_k = k.count * k.bytes;
    // Lanes stand for the rows of a few tokens, so that none divides in the loop.
    const int tokens_at_once = max(1, kWarp / a_.rows);
    const int lane_token = a_.rows < kWarp ? lane_ / a_.rows : 0;
    if (lane_token >= tokens_at_once) return;
    for (int token = lane_token; token * a_.strip_bytes < size.bytes; token += tokens_at_once)
      for (int row = lane_ - lane_token * a_.rows; row < a_.rows; row += kWarp) {
        const bool of_k = row < k.count;
        const KvCopyRows& r = of_k ? k : v;
        const int r_row = of_k ? row : row - k.count;
        fn(tile.device + r.offset + r_row * r.stride + (size.first_token + token) * r.token_stride,
           token * a_.strip_bytes + (of_k ? 0 : all_k) + r_row * r.bytes, r.bytes);
      }
  }

  const Args<kPages>& a_;
  char* const ring_;
  const KvCopyPage* const pages_;
  Kept& kept_;
  const int32_t first_, step_;
  const int lane_;
  const bool to_host_;
  const int32_t tile_bytes_;
};

// The pages out of the parameters: all threads at once, since one after the other each would take
// as long as a load of memory that is busy.
template <int kPages>
__device__ void gather_pages(const Args<kPages>& args, KvCopyPage* pages) {
  for (int i = static_cast<int>(threadIdx.x); 2 * i < args.p.count;
       i += static_cast<int>(blockDim.x)) {
    uint4 two;
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(two.x), "=r"(two.y), "=r"(two.z), "=r"(two.w)
                 : "l"(args.pages + 2 * i));
    reinterpret_cast<uint4*>(pages)[i] = two;
  }
}
#endif

// Loads run up to a ring ahead of stores.
template <int kPages, bool kStrips>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    ring_copy(const __grid_constant__ Args<kPages> args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  pdl_wait();
  pdl_trigger();
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp, slots = args.slots, stores = args.stores;
  auto* pages = reinterpret_cast<KvCopyPage*>(shared);
  Kept& kept = reinterpret_cast<Kept*>(shared + sizeof(args.pages))[warp];
  char* ring = shared + args.ring_offset + warp * slots * args.tile_bytes;
  gemm::barrier_init(&kept.barriers[lane]);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  gather_pages(args, pages);
  __syncthreads();
  const auto movers = static_cast<int32_t>(gridDim.x) * warps;
  const auto first = static_cast<int32_t>(warp * gridDim.x + blockIdx.x);
  const int32_t count = (args.tiles - first + movers - 1) / movers;
  const Mover<kPages, kStrips> mover(args, ring, pages, kept, first, movers);
  int32_t asked = 0;
  const auto ask = [&](int slot) {
    if (asked % kWarp == 0) mover.describe(asked);
    mover.load(asked++, slot);
  };
  for (int s = 0; s < slots && asked < count; ++s) ask(s);
  const int64_t pause = args.tile_clocks, late = args.late_clocks;
  long long next = clock64() + pause * first / movers;
  int slot = 0, freed = 0;
  uint32_t parity = 0;
  for (int32_t k = 0; k < count; ++k) {
    mover.await_load(slot, parity);
    if (pause > 0) {
      long long now = clock64();
      while (now < next) now = clock64();
      next = max(next, now - late) + pause;
    }
    mover.store(k, slot);
    if (k >= stores) {  // the oldest of them has left its slot
      await_stores(stores);
      __syncwarp();
      if (asked < count) ask(freed);
      if (++freed == slots) freed = 0;
    }
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
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

// Measured on an H200 beside a kernel that reads its memory at the full rate (attune bench hicache;
// docs/performance.md has the figures). Rates are below what the link, PCIe 5 x16, takes of stores
// and requests of a multiprocessor, 52 GB/s to the host and 51 from it: at that limit they slow the
// reader by 24 and 10 %.
KvCopyTuning measured(const KvCopyParams& p) {
  const bool strips = p.tokens > 0, small = !strips && p.piece_bytes < (16 << 10);
  if (strips) return {8, 2, 16384, 3, 1, p.to_host ? 47e9 : 49.5e9, 4};
  if (small)
    return p.to_host ? KvCopyTuning{16, 1, 4096, 24, 8, 46e9, 1}
                     : KvCopyTuning{8, 4, 4096, 6, 1, 47e9, 1};
  return p.to_host ? KvCopyTuning{6, 1, 16384, 6, 3, 50e9, 1}
                   : KvCopyTuning{4, 2, 8192, 6, 1, 49.5e9, 4};
}

KvCopyTuning tuned(const KvCopyParams& p) {
  const KvCopyTuning &asked = p.tuning, best = measured(p);
  const auto or_best = [](auto a, auto b) { return a > 0 ? a : b; };
  return {or_best(asked.ctas, best.ctas),
          std::clamp(or_best(asked.warps, best.warps), 1, kMostWarps),
          or_best(asked.tile_bytes, best.tile_bytes),
          or_best(asked.slots, best.slots),
          or_best(asked.stores, best.stores),
          or_best(asked.bytes_per_second, best.bytes_per_second),
          or_best(asked.late, best.late)};
}

// Cuts pieces into tiles and a warp's `ring` bytes into slots. A piece's tiles are of one size,
// since they are paced alike, in whole lines, since reads of host memory across two take twice as
// long; where they are small, there are as many more.
template <int kPages>
void cut(Args<kPages>& a, int32_t ring) {
  const KvCopyParams& p = a.p;
  const KvCopyTuning& t = p.tuning;
  const int32_t unit = p.tokens > 0 ? a.strip_bytes : kLine,
                most = std::min(t.tile_bytes, ring / 2);
  const int64_t units = p.tokens > 0 ? p.tokens : ceil_div(p.piece_bytes, unit);
  a.tiles_per_piece = static_cast<int32_t>(ceil_div(units, std::max(1, most / unit)));
  a.tile_tokens = static_cast<int32_t>(ceil_div(units, a.tiles_per_piece));
  a.tile_bytes = a.tile_tokens * unit;
  a.tiles = p.count * p.layers * a.tiles_per_piece;
  const auto within = [&](int32_t tiles, int32_t low, int32_t high) {
    const int64_t as_many = int64_t{tiles} * t.tile_bytes / a.tile_bytes;
    return static_cast<int32_t>(std::clamp<int64_t>(as_many, low, high));
  };
  a.slots = within(t.slots, 2, std::clamp(ring / a.tile_bytes, 2, kMostSlots));
  a.stores = within(t.stores, 1, std::min(kMostStores, a.slots - 1));
}

template <int kPages>
Args<kPages> args_of(const KvCopyParams& p) {
  Args<kPages> a{.p = p};
  KvCopyTuning& t = a.p.tuning;
  t = tuned(p);
  a.rows = p.k.count + p.v.count;
  a.strip_bytes = p.k.count * p.k.bytes + p.v.count * p.v.bytes;
  const auto before = static_cast<int64_t>(sizeof(a.pages) + t.warps * sizeof(Kept));
  a.ring_offset = static_cast<int32_t>(ceil_div(before, 128) * 128);
  cut(a, (device::kMostSharedBytes - a.ring_offset) / t.warps);
  static const int kilohertz = attribute(cudaDevAttrClockRate);  // takes the driver 0.3 ms
  a.tile_clocks =
      static_cast<int64_t>(1e3 * kilohertz * a.tile_bytes * t.ctas * t.warps / t.bytes_per_second);
  a.late_clocks = t.late * a.tile_clocks;
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

template <int kPages, bool kStrips>
void launch_ring(const KvCopyParams& p, Stream& stream) {
  const Args<kPages> a = args_of<kPages>(p);
  const KvCopyTuning& t = a.p.tuning;
  const int32_t shared = a.ring_offset + t.warps * a.slots * a.tile_bytes;
  cudaFuncSetAttribute(ring_copy<kPages, kStrips>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       device::kMostSharedBytes);
  launch_kernel(stream, "kv_copy",
                {.grid = static_cast<uint32_t>(std::min(t.ctas, a.tiles)),
                 .block = static_cast<uint32_t>(t.warps * kWarp),
                 .shared_bytes = static_cast<uint32_t>(shared)},
                {{"pages", p.count}, {"layers", p.layers}, {"to host", p.to_host}},
                ring_copy<kPages, kStrips>, a);
}

template <int kPages>
void launch(const KvCopyParams& p, Stream& stream) {
  const int64_t word = word_bytes(p);
  // A ring of two strips, for as many warps as there may be.
  const bool fits = 2 * kMostWarps * (p.k.count * p.k.bytes + p.v.count * p.v.bytes) <
                    device::kMostSharedBytes - 32 * 1024;
  if (word == 16 && fits && attribute(cudaDevAttrComputeCapabilityMajor) >= 9)
    return p.tokens > 0 ? launch_ring<kPages, true>(p, stream)
                        : launch_ring<kPages, false>(p, stream);
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
