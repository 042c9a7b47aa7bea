// gemm_bench [--isa LEVEL] [--threads N] [--act float32|bfloat16] [--rows M] [--seconds S]
//            [--deterministic]
//   Checks the products of every format against double precision, then times the linear layers of
//   SmolLM2-135M (30 layers of Q4_1, a head of Q8_0, 96 MB in all, so that nothing stays in cache)
//   at 1, 8, 32 and 512 rows. Prints a table; exits 1 if a check fails. It needs no file and no
//   network, so it can be carried to another machine (bench/carry.sh).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "ops/gemm/gemm_test_util.h"
#include "ops/gemm/peak_bench.h"
#include "ops/ops.h"

namespace attune::ops {
namespace {

using test::DType;
using Clock = std::chrono::steady_clock;

struct Args {
  std::string isa = "auto";
  int threads = 0;
  DType act = DType::kF32;
  double seconds = 2;  // per row count
  int64_t rows = 0;    // only this row count
  bool deterministic = false;
};

struct Machine {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  const OpTable* ops;

  void run(std::function<void()> fn) {
    stream->launch(std::move(fn));
    stream->synchronize();
  }
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// x as the kernels take it.
struct Input {
  std::vector<float> floats;  // rounded to what the kernels see
  std::vector<uint16_t> halves;
  DType dtype;
  const void* data() const {
    return dtype == DType::kF32 ? static_cast<const void*>(floats.data()) : halves.data();
  }
};

Input random_input(int64_t count, DType dtype) {
  std::mt19937 rng(9);
  std::normal_distribution<float> normal;
  Input in{std::vector<float>(count), {}, dtype};
  for (float& f : in.floats) {
    f = normal(rng);
    if (dtype != DType::kBF16) continue;
    in.halves.push_back(tensor::f32_to_bf16(f));
    f = tensor::bf16_to_f32(in.halves.back());
  }
  return in;
}

// The largest error over all outputs, relative to the sum of the absolute terms.
double check_error(Machine& machine, DType dtype, DType act, int64_t m, bool deterministic) {
  const int64_t n = 75, k = 1536;
  const auto raw = test::random_weight(dtype, n, k, 4);
  const auto packed = pack_weight({raw.view}, act, *machine.device, *machine.stream);
  ATTUNE_CHECK(packed.ok());
  const auto w = test::dequantized(raw);
  const Input x = random_input(m * k, act);
  std::vector<float> y(m * n);
  const LinearParams p{.x = x.data(),
                       .x_dtype = act,
                       .ldx = k,
                       .m = static_cast<int32_t>(m),
                       .weight = &*packed,
                       .bias = nullptr,
                       .y = y.data(),
                       .ldy = n,
                       .accumulate = false,
                       .deterministic = deterministic};
  machine.run([&] { machine.ops->linear(p, *machine.stream); });
  double worst = 0;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      double want = 0, size = 0;
      for (int64_t j = 0; j < k; ++j) {
        const double term = double(x.floats[r * k + j]) * w[i * k + j];
        want += term;
        size += std::abs(term);
      }
      worst = std::max(worst, std::abs(want - y[r * n + i]) / size);
    }
  }
  return worst;
}

bool check_all(Machine& machine, const Args& args) {
  bool ok = true;
  std::printf("largest error over the sum of absolute terms (limit: float weights in bf16 2e-3)\n");
  std::printf("%-10s %10s %10s %10s\n", "format", "m=1", "m=7", "m=64");
  for (DType dtype : test::kWeightTypes) {
    std::printf("%-10s", tensor::dtype_name(dtype));
    const bool rounded = args.act == DType::kBF16 && (dtype == DType::kF32 || dtype == DType::kF16);
    for (int64_t m : {1, 7, 64}) {
      const double error = check_error(machine, dtype, args.act, m, args.deterministic);
      std::printf(" %10.2e", error);
      ok = ok && error < (rounded ? 2e-3 : 1e-6);
    }
    std::printf("\n");
  }
  std::printf("check: %s\n\n", ok ? "passed" : "FAILED");
  return ok;
}

struct Layer {
  const char* name;
  DType dtype;
  int64_t n, k;
  int count;  // in the model
};
constexpr Layer kLayers[] = {{"qkv", DType::kQ4_1, 960, 576, 30},
                             {"attn_out", DType::kQ4_1, 576, 576, 30},
                             {"gate_up", DType::kQ4_1, 3072, 576, 30},
                             {"down", DType::kQ4_1, 576, 1536, 30},
                             {"head", DType::kQ8_0, 49152, 576, 1}};

struct Timing {
  double best[std::size(kLayers)];  // seconds of all copies of a layer
  double total_best = 1e9, total_median = 0;
};

struct Model {
  std::vector<std::vector<PackedWeight>> weights;  // [layer][copy]
  int64_t bytes = 0;
};

Model build_model(Machine& machine, DType act) {
  Model model;
  double seconds = 0;
  for (const Layer& layer : kLayers) {
    const auto raw = test::random_weight(layer.dtype, layer.n, layer.k, 11);
    auto& copies = model.weights.emplace_back();
    for (int i = 0; i < layer.count; ++i) {
      const auto start = Clock::now();
      auto packed = pack_weight({raw.view}, act, *machine.device, *machine.stream);
      seconds += seconds_since(start);
      ATTUNE_CHECK(packed.ok());
      model.bytes += packed->bytes();
      copies.push_back(std::move(*packed));
    }
  }
  std::printf("packed %.1f MB in %.1f ms\n\n", model.bytes * 1e-6, seconds * 1e3);
  return model;
}

// Sweeps over the whole model, as a step would, until the time is up.
Timing time_model(Machine& machine, const Model& model, const Args& args, int64_t m) {
  const Input x = random_input(m * 1536, args.act);
  std::vector<float> y(m * 49152);
  Timing t;
  std::fill(std::begin(t.best), std::end(t.best), 1e9);
  std::vector<double> totals;
  const auto begin = Clock::now();
  while (totals.size() < 3 || seconds_since(begin) < args.seconds) {
    double total = 0, layer_seconds[std::size(kLayers)] = {};
    const auto one = [&](size_t i, int copy) {
      // A prompt needs the head for its last token only.
      const int64_t rows = kLayers[i].n == 49152 && m > 32 ? 1 : m;
      const LinearParams p{.x = x.data(),
                           .x_dtype = args.act,
                           .ldx = kLayers[i].k,
                           .m = static_cast<int32_t>(rows),
                           .weight = &model.weights[i][copy],
                           .bias = nullptr,
                           .y = y.data(),
                           .ldy = kLayers[i].n,
                           .accumulate = false,
                           .deterministic = args.deterministic};
      const auto start = Clock::now();
      machine.ops->linear(p, *machine.stream);
      layer_seconds[i] += seconds_since(start);
    };
    machine.run([&] {
      for (int copy = 0; copy < 30; ++copy)
        for (size_t i = 0; i < 4; ++i) one(i, copy);
      one(4, 0);
    });
    for (size_t i = 0; i < std::size(kLayers); ++i) {
      t.best[i] = std::min(t.best[i], layer_seconds[i]);
      total += layer_seconds[i];
    }
    totals.push_back(total);
  }
  std::sort(totals.begin(), totals.end());
  t.total_best = totals.front();
  t.total_median = totals[totals.size() / 2];
  return t;
}

void print_timing(const Timing& t, const Model& model, int64_t m, double peak, double bandwidth) {
  const auto line = [&](const char* name, double seconds, double flop, double bytes, int calls) {
    std::printf("%5ld %-10s %10.1f %9.1f %6.0f%% %8.2f %6.0f%%\n", static_cast<long>(m), name,
                seconds / calls * 1e6, flop / seconds * 1e-9, 100 * flop / seconds / peak,
                bytes / seconds * 1e-9, 100 * bytes / seconds / bandwidth);
  };
  double all_flop = 0;
  for (size_t i = 0; i < std::size(kLayers); ++i) {
    const Layer& l = kLayers[i];
    const double rows = l.n == 49152 && m > 32 ? 1 : m;
    const double flop = 2.0 * l.n * l.k * l.count * rows;
    all_flop += flop;
    line(l.name, t.best[i], flop, 1.0 * model.weights[i][0].bytes() * l.count, l.count);
  }
  line("all, best", t.total_best, all_flop, model.bytes, 1);
  line("all, med.", t.total_median, all_flop, model.bytes, 1);
  std::printf("      products alone: %.0f tokens/s best, %.0f median\n", m / t.total_best,
              m / t.total_median);
}

int run_bench(const Args& args) {
  auto device = device::create_cpu_device(args.threads, args.isa);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().to_string().c_str());
    return 2;
  }
  Machine machine{std::move(*device), nullptr, nullptr};
  machine.stream = machine.device->create_stream();
  machine.ops = &cpu_ops(machine.device->info().isa);
  std::printf("%s, activations %s%s\n", machine.device->info().name.c_str(),
              tensor::dtype_name(args.act), args.deterministic ? ", deterministic" : "");
  const bool ok = check_all(machine, args);

  double peak = 0, bandwidth = 0;
  const bool wide = machine.device->info().isa >= device::CpuIsa::kAvx512;
  machine.run([&] {
    peak = bench::fma_peak(machine.stream->pool(), wide);
    bandwidth = bench::read_bandwidth(machine.stream->pool());
  });
  std::printf("float32 FMA peak %.1f GFLOP/s, reading 96 MiB %.1f GB/s\n", peak * 1e-9,
              bandwidth * 1e-9);
  const Model model = build_model(machine, args.act);
  std::printf("%5s %-10s %10s %9s %7s %8s %7s\n", "rows", "layer", "us/call", "GFLOP/s", "of peak",
              "GB/s", "of read");
  std::vector<int64_t> row_counts = {1, 2, 4, 8, 16, 32, 128, 512};
  if (args.rows > 0) row_counts = {args.rows};
  for (int64_t m : row_counts)
    print_timing(time_model(machine, model, args, m), model, m, peak, bandwidth);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace attune::ops

int main(int argc, char** argv) {
  attune::ops::Args args;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (flag == "--isa") {
      args.isa = value();
    } else if (flag == "--threads") {
      args.threads = std::atoi(value());
    } else if (flag == "--seconds") {
      args.seconds = std::atof(value());
    } else if (flag == "--rows") {
      args.rows = std::atoi(value());
    } else if (flag == "--act") {
      args.act = attune::tensor::parse_dtype(value()).value_or(attune::tensor::DType::kF32);
    } else if (flag == "--deterministic") {
      args.deterministic = true;
    } else {
      std::fprintf(stderr, "unknown flag %s: see the head of gemm_bench.cc\n", argv[i]);
      return 2;
    }
  }
  return attune::ops::run_bench(args);
}
