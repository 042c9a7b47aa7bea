// The device's sampler against the CPU's (ops/sample/sample.h) and against exact distributions.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <span>

#include "ops/gpu_test_util.h"
#include "ops/sample/device_sampler.h"
#include "ops/sample/sample.h"

namespace attune::ops {
namespace {

using test::random_floats;

constexpr float kInf = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// What the CPU keeps of a sequence.
struct Sequence {
  SamplingParams sampling;
  std::vector<TokenId> history, forbidden;
  int32_t prompt = 1;

  std::vector<TokenCount> counts() const {
    std::vector<TokenCount> all;
    if (sampling.repetition_penalty == 1.0f && sampling.presence_penalty == 0 &&
        sampling.frequency_penalty == 0)
      return all;
    for (size_t i = 0; i < history.size(); ++i) {
      auto it = std::find_if(all.begin(), all.end(),
                             [&](const TokenCount& c) { return c.token == history[i]; });
      if (it == all.end()) it = all.insert(all.end(), {history[i], 0, false});
      if (i < static_cast<size_t>(prompt)) {
        it->in_prompt = true;
      } else {
        ++it->in_output;
      }
    }
    return all;
  }
  Sampled sample(std::span<const float> row, int32_t position, Sampler& sampler) const {
    std::vector<float> logits(row.begin(), row.end());
    const auto all = counts();
    const bool early = static_cast<int32_t>(history.size()) - prompt < sampling.min_new_tokens;
    return sampler.sample(
        {.logits = logits.data(),
         .vocab = static_cast<int32_t>(logits.size()),
         .sampling = &sampling,
         .seed = sampling.seed.value_or(0),
         .position = position,
         .counts = all,
         .forbidden = early ? std::span<const TokenId>(forbidden) : std::span<const TokenId>(),
         .top_logprobs = sampling.top_logprobs});
  }
};

class CudaSampler : public test::GpuTest {
 protected:
  void make(int32_t vocab, int32_t places = 64, int32_t rows = 64) {
    vocab_ = vocab;
    rows_ = rows;
    auto made =
        create_device_sampler({.max_places = places, .max_rows = rows, .vocab = vocab}, *device_);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    sampler_ = std::move(*made);
    places_ = upload(std::vector<int32_t>(rows));
    positions_ = upload(std::vector<int32_t>(rows));
    logits_ = upload(std::vector<float>(static_cast<size_t>(rows) * vocab));
  }
  Status admit(int32_t place, const Sequence& s) {
    return sampler_->admit(place, s.sampling, s.forbidden, s.history, s.prompt, *stream_);
  }
  // Rows of `logits` into the sampler.
  std::vector<SampledRow> sample(const std::vector<int32_t>& places,
                                 const std::vector<int32_t>& positions,
                                 const std::vector<float>& logits) {
    const auto n = static_cast<int32_t>(places.size());
    stream_->copy(places_, places.data(), n * 4);
    stream_->copy(positions_, positions.data(), n * 4);
    stream_->copy(logits_, logits.data(), int64_t{n} * vocab_ * 4);
    stream_->launch([&] { sampler_->sample(places_, positions_, logits_, n, *stream_); });
    return results(n);
  }
  std::vector<SampledRow> results(int32_t n) {
    std::vector<SampledRow> out(n);
    stream_->copy(out.data(), sampler_->results(), n * int64_t{sizeof(SampledRow)});
    stream_->synchronize();
    EXPECT_TRUE(stream_->status().ok()) << stream_->status().to_string();
    return out;
  }
  std::span<const float> row_of(const std::vector<float>& logits, int32_t i) const {
    return std::span(logits).subspan(static_cast<size_t>(i) * vocab_, vocab_);
  }
  // Tokens that differ from the CPU's, of 64 rows with these parameters each.
  int32_t differences(const std::vector<SamplingParams>& all, float sigma, uint32_t seed) {
    const auto n = static_cast<int32_t>(all.size());
    const auto logits = random_floats(static_cast<size_t>(n) * vocab_, seed, sigma);
    std::vector<int32_t> places(n), positions(n);
    std::vector<Sequence> sequences(n);
    for (int32_t i = 0; i < n; ++i) {
      sequences[i] = {.sampling = all[i], .history = {0}, .forbidden = {}};
      places[i] = n - 1 - i;
      positions[i] = static_cast<int32_t>(seed % 1000) + i;
      EXPECT_TRUE(admit(places[i], sequences[i]).ok());
    }
    const auto got = sample(places, positions, logits);
    int32_t different = 0;
    Sampler cpu;
    for (int32_t i = 0; i < n; ++i) {
      const Sampled want = sequences[i].sample(row_of(logits, i), positions[i], cpu);
      if (got[i].token == want.token) continue;
      ++different;
      if (shown_++ < 10)
        std::printf(
            "row %d: %d, the CPU %d; temperature %g, top_k %d, top_p %g, min_p %g, "
            "sigma %g, vocab %d\n",
            i, got[i].token, want.token, all[i].temperature, all[i].top_k, all[i].top_p,
            all[i].min_p, sigma, vocab_);
    }
    return different;
  }

  int32_t vocab_ = 0, rows_ = 0, shown_ = 0;
  std::unique_ptr<DeviceSampler> sampler_;
  int32_t *places_ = nullptr, *positions_ = nullptr;
  float* logits_ = nullptr;
};

TEST_F(CudaSampler, GreedyTakesTheFirstOfEquals) {
  for (int32_t vocab : {1, 2, 7, 50, 4096, 50257, 128256, 151936, 262144, 600001}) {
    const int32_t n = vocab > 200000 ? 3 : 17;
    make(vocab, n, n);
    auto logits = random_floats(static_cast<size_t>(n) * vocab, vocab, 2);
    std::mt19937 rng(vocab);
    for (int32_t i = 0; i < n; i += 2)  // several equal peaks, anywhere
      for (int k = 0; k < 5; ++k) logits[static_cast<size_t>(i) * vocab + rng() % vocab] = 40;
    std::vector<int32_t> places(n);
    std::iota(places.begin(), places.end(), 0);
    for (int32_t p : places) {
      Sequence s{
          .sampling = {.temperature = p % 3 == 0 ? 0.0f : 1.0f}, .history = {0}, .forbidden = {}};
      if (p % 3) s.sampling.top_k = 1;
      ASSERT_TRUE(admit(p, s).ok());
    }
    const auto got = sample(places, places, logits);
    for (int32_t i = 0; i < n; ++i) {
      const auto row = row_of(logits, i);
      ASSERT_EQ(got[i].token, std::max_element(row.begin(), row.end()) - row.begin())
          << "vocabulary " << vocab << ", row " << i;
      ASSERT_EQ(got[i].num_top, 0);
    }
  }
}

std::vector<SamplingParams> many_parameters(int32_t n, int32_t vocab, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto real = [&](float a, float b) {
    return std::uniform_real_distribution<float>(a, b)(rng);
  };
  std::vector<SamplingParams> all(n);
  for (SamplingParams& s : all) {
    s.temperature = rng() % 8 == 0 ? 0.0f : real(0.3f, 2.0f);
    if (rng() % 2) s.top_p = real(0.05f, 1.0f);
    if (rng() % 3 == 0) s.top_k = 1 + static_cast<int32_t>(rng() % (rng() % 2 ? 50 : vocab));
    if (rng() % 4 == 0) s.min_p = real(0.0f, 0.3f);
    s.seed = uint64_t{rng()} << 32 | rng();
  }
  return all;
}

TEST_F(CudaSampler, DrawsTheCpusTokens) {
  int32_t rows = 0, different = 0;
  for (const auto& [vocab, rounds] :
       {std::pair{50, 40}, {1000, 100}, {4099, 100}, {32000, 20}, {128256, 8}}) {
    make(vocab);
    for (int32_t r = 0; r < rounds; ++r) {
      const float sigma = r % 3 == 0 ? 1.0f : r % 3 == 1 ? 3.0f : 6.0f;
      different += differences(many_parameters(64, vocab, 17 * r + vocab), sigma, 100 * r + vocab);
      rows += 64;
    }
  }
  std::printf("%d of %d tokens differ from the CPU's\n", different, rows);
  EXPECT_LE(different, rows / 1000);
}

// Many equal logits: the order among them is that of the ids.
TEST_F(CudaSampler, TiesAndExtremes) {
  const int32_t vocab = 5000, n = 64;
  make(vocab);
  std::vector<SamplingParams> all = many_parameters(n, vocab, 5);
  for (int kind = 0; kind < 4; ++kind) {
    std::vector<float> logits(static_cast<size_t>(n) * vocab);
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = kind == 0   ? 1.5f
                  : kind == 1 ? static_cast<float>(i * 7919 % 13)
                  : kind == 2 ? (i % 7 ? -kInf : static_cast<float>(i % 5))
                              : (i % vocab == 77 ? 200.0f : -3.0f);
    std::vector<int32_t> places(n);
    std::iota(places.begin(), places.end(), 0);
    std::vector<Sequence> sequences(n);
    for (int32_t i = 0; i < n; ++i) {
      sequences[i] = {.sampling = all[i], .history = {0}, .forbidden = {}};
      ASSERT_TRUE(admit(i, sequences[i]).ok());
    }
    int32_t different = 0;
    Sampler cpu;
    for (int32_t step = 0; step < 20; ++step) {
      const std::vector<int32_t> positions(n, step);
      const auto got = sample(places, positions, logits);
      for (int32_t i = 0; i < n; ++i) {
        const auto want = sequences[i].sample(row_of(logits, i), step, cpu);
        if (got[i].token != want.token && different++ < 5)
          std::printf("kind %d, row %d: %d, the CPU %d; T %g, k %d, p %g, min_p %g\n", kind, i,
                      got[i].token, want.token, all[i].temperature, all[i].top_k, all[i].top_p,
                      all[i].min_p);
      }
    }
    EXPECT_LE(different, 20 * n / 500) << "kind " << kind;
  }
}

// Draws at many positions against the exact distribution; 5 sigma.
TEST_F(CudaSampler, FrequenciesAreTheDistributions) {
  const int32_t vocab = 40, n = 64, launches = 400;
  make(vocab);
  const auto row = random_floats(vocab, 11, 2);
  std::vector<float> logits;
  for (int32_t i = 0; i < n; ++i) logits.insert(logits.end(), row.begin(), row.end());
  const SamplingParams kinds[] = {
      {.temperature = 1},
      {.temperature = 0.7f},
      {.temperature = 1.5f, .top_p = 0.8f},
      {.temperature = 1, .top_k = 5},
      {.temperature = 1, .top_p = 0.9f, .top_k = 10},
      {.temperature = 1, .min_p = 0.1f},
      {.temperature = 1, .top_p = 0.95f, .min_p = 0.05f},
  };
  for (const SamplingParams& s : kinds) {
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    std::vector<double> p(vocab);
    for (int32_t t = 0; t < vocab; ++t) p[t] = std::exp((row[t] - row[order[0]]) / s.temperature);
    const double likeliest = p[order[0]];
    if (s.top_k > 0)
      for (int32_t r = s.top_k; r < vocab; ++r) p[order[r]] = 0;
    const double base = std::accumulate(p.begin(), p.end(), 0.0);
    double sum = 0;
    for (int32_t r = 0; r < vocab; ++r) {
      if (sum >= s.top_p * base && s.top_p < 1) p[order[r]] = 0;
      sum += p[order[r]];
    }
    for (double& v : p)
      if (v < s.min_p * likeliest) v = 0;
    const double all = std::accumulate(p.begin(), p.end(), 0.0);
    std::vector<int32_t> places(n), seen(vocab);
    std::iota(places.begin(), places.end(), 0);
    for (int32_t i = 0; i < n; ++i) {
      Sequence q{.sampling = s, .history = {0}, .forbidden = {}};
      q.sampling.seed = 1000 + i;
      ASSERT_TRUE(admit(i, q).ok());
    }
    for (int32_t l = 0; l < launches; ++l)
      for (const SampledRow& r : sample(places, std::vector<int32_t>(n, l), logits))
        ++seen.at(r.token);
    const double draws = n * launches;
    for (int32_t t = 0; t < vocab; ++t) {
      const double want = p[t] / all;
      EXPECT_NEAR(seen[t] / draws, want, 5 * std::sqrt(want * (1 - want) / draws) + 1e-12)
          << "token " << t << ", top_p " << s.top_p << ", top_k " << s.top_k;
    }
  }
}

// Sequences of many steps: counts grow by what was drawn, min_new_tokens ends.
TEST_F(CudaSampler, PenaltiesBiasAndForbiddenIdsOverSteps) {
  const int32_t vocab = 300, n = 24, steps = 40;
  make(vocab, n, n);
  std::mt19937 rng(3);
  std::vector<Sequence> sequences(n);
  std::vector<int32_t> places(n);
  std::iota(places.begin(), places.end(), 0);
  for (int32_t i = 0; i < n; ++i) {
    Sequence& s = sequences[i];
    s.sampling.temperature = i % 2 ? 0.9f : 0.0f;
    s.sampling.seed = i;
    if (i % 3 == 0) s.sampling.repetition_penalty = i % 2 ? 0.8f : 1.4f;
    if (i % 4 == 1) s.sampling.presence_penalty = 1.1f;
    if (i % 5 == 1) s.sampling.frequency_penalty = 0.7f;
    if (i % 4 == 2)
      for (int k = 0; k < 10; ++k)
        s.sampling.logit_bias.emplace_back(static_cast<TokenId>(rng() % (vocab + 50)), 3.0f);
    s.sampling.min_new_tokens = i % 6 == 0 ? 20 : 0;
    for (int k = 0; k < 12; ++k) s.forbidden.push_back(static_cast<TokenId>(rng() % vocab));
    s.prompt = 20 + i;
    for (int k = 0; k < s.prompt + i % 4; ++k)
      s.history.push_back(static_cast<TokenId>(rng() % vocab));
    ASSERT_TRUE(admit(i, s).ok());
  }
  Sampler cpu;
  int32_t different = 0;
  for (int32_t step = 0; step < steps; ++step) {
    const auto logits = random_floats(static_cast<size_t>(n) * vocab, 50 + step, 1.5f);
    std::vector<int32_t> positions(n);
    for (int32_t i = 0; i < n; ++i)
      positions[i] = static_cast<int32_t>(sequences[i].history.size());
    const auto got = sample(places, positions, logits);
    for (int32_t i = 0; i < n; ++i) {
      const Sampled want = sequences[i].sample(row_of(logits, i), positions[i], cpu);
      if (sequences[i].sampling.temperature == 0) {
        ASSERT_EQ(got[i].token, want.token) << "step " << step << ", row " << i;
      }
      different += got[i].token != want.token;
      sequences[i].history.push_back(got[i].token);
    }
  }
  EXPECT_LE(different, 1);
}

// A history longer than what is staged at once.
TEST_F(CudaSampler, LongHistoriesAndManyAdmissions) {
  const int32_t vocab = 2000, n = 32;
  make(vocab, n, n);
  std::mt19937 rng(4);
  std::vector<Sequence> sequences(n);
  std::vector<int32_t> places(n);
  std::iota(places.begin(), places.end(), 0);
  for (int round = 0; round < 3; ++round) {
    for (int32_t i = 0; i < n; ++i) {
      Sequence& s = sequences[i];
      s.sampling = {.temperature = 0, .repetition_penalty = 1.7f, .frequency_penalty = 0.05f};
      s.prompt = 30000 + i;
      s.history.clear();
      for (int32_t k = 0; k < s.prompt + 5000; ++k)
        s.history.push_back(static_cast<TokenId>(rng() % (vocab / 2)));
      ASSERT_TRUE(admit(i, s).ok());
    }
    const auto logits = random_floats(static_cast<size_t>(n) * vocab, round, 3);
    const auto got = sample(places, places, logits);
    Sampler cpu;
    for (int32_t i = 0; i < n; i += 7)
      EXPECT_EQ(got[i].token, sequences[i].sample(row_of(logits, i), i, cpu).token);
  }
}

TEST_F(CudaSampler, NumbersThatAreNoneAndPadding) {
  const int32_t vocab = 1000;
  make(vocab, 8, 16);
  std::vector<int32_t> places = {0, -1, 1, 2, 3, -1, 4, 5};
  auto logits = random_floats(places.size() * vocab, 5);
  for (int32_t p = 0; p < 8; ++p) {
    Sequence s{.sampling = {.temperature = p % 2 ? 1.0f : 0.0f}, .history = {0}, .forbidden = {}};
    if (p == 3) s.sampling.top_p = 0.5f;
    s.sampling.top_logprobs = 2;
    ASSERT_TRUE(admit(p, s).ok());
  }
  logits[2 * vocab + 999] = kNan;
  logits[3 * vocab] = kInf;
  std::fill_n(logits.begin() + 4 * vocab, vocab, -kInf);
  const std::vector<int32_t> positions(places.size(), 3);
  auto before = results(16);
  const auto got = sample(places, positions, logits);
  for (int32_t i : {2, 3, 4}) {
    EXPECT_EQ(got[i].token, -1) << i;
    EXPECT_EQ(got[i].num_top, 0) << i;
  }
  for (int32_t i : {1, 5}) EXPECT_EQ(std::memcmp(&got[i], &before[i], sizeof(SampledRow)), 0) << i;
  const auto after = results(16);
  for (int32_t i = 8; i < 16; ++i)
    EXPECT_EQ(std::memcmp(&after[i], &before[i], sizeof(SampledRow)), 0) << i;
  // The last tokens: 0 where nothing could be drawn.
  int32_t* ids = output(std::vector<int32_t>{-1, 7, -2, -3, -4, 0, -5, -6});
  stream_->launch([&] { sampler_->fill_ids(ids, 8, *stream_); });
  const auto filled = download(ids, 8);
  EXPECT_EQ(filled,
            (std::vector<int32_t>{got[0].token, 7, 0, 0, 0, 0, got[6].token, got[7].token}));
  stream_->launch([&] {
    sampler_->fill_ids(ids, 0, *stream_);
    sampler_->sample(places_, positions_, logits_, 0, *stream_);
  });
}

TEST_F(CudaSampler, LogprobsAreTheModelsOwn) {
  for (int32_t vocab : {3, 100, 50257, 128256}) {
    const int32_t n = 9;
    make(vocab, n, n);
    auto logits = random_floats(static_cast<size_t>(n) * vocab, vocab, 2);
    for (int32_t t = 0; t < vocab; t += 2) logits[t] = 3;           // row 0: many equal
    for (int32_t t = 5; t < vocab; ++t) logits[vocab + t] = -kInf;  // row 1: few that can be
    std::vector<Sequence> sequences(n);
    std::vector<int32_t> places(n);
    std::iota(places.begin(), places.end(), 0);
    for (int32_t i = 0; i < n; ++i) {
      SamplingParams& s = sequences[i].sampling;
      s.temperature = 0.8f;
      s.seed = i;
      s.top_logprobs = i % 3 == 0 ? 20 : i % 3 == 1 ? 0 : 5;
      if (i % 2) s.logit_bias = {{1, 4.0f}};
      sequences[i].history = {0};
      ASSERT_TRUE(admit(i, sequences[i]).ok());
    }
    const auto got = sample(places, places, logits);
    // The ids' own, as for a prompt; one of them is none.
    std::vector<int32_t> ids(n);
    for (int32_t i = 0; i < n; ++i) ids[i] = got[i].token;
    ids[2] = -1;
    SampledRow* out = output<SampledRow>(n);
    const int32_t* on_device = upload(ids);
    stream_->launch([&] { sampler_->logprobs(on_device, logits_, n, 7, out, *stream_); });
    const auto scored = download(out, n);
    for (int32_t i = 0; i < n; ++i) {
      const auto check = [&](const SampledRow& row, int32_t id, int32_t top) {
        const LogprobEntry want = Sampler::logprobs(row_of(logits, i).data(), vocab, id, top);
        EXPECT_EQ(row.token, id);
        EXPECT_NEAR(row.logprob, want.chosen.logprob, 2e-5) << vocab << " " << i;
        ASSERT_EQ(row.num_top, static_cast<int32_t>(want.top.size())) << vocab << " " << i;
        for (int32_t k = 0; k < row.num_top; ++k) {
          EXPECT_EQ(row.top_tokens[k], want.top[k].token) << vocab << " " << i << " " << k;
          if (std::isinf(want.top[k].logprob)) {
            EXPECT_EQ(row.top_logprobs[k], want.top[k].logprob);
          } else {
            EXPECT_NEAR(row.top_logprobs[k], want.top[k].logprob, 2e-5);
          }
        }
      };
      check(got[i], got[i].token, std::max(0, sequences[i].sampling.top_logprobs));
      check(scored[i], ids[i], 7);
    }
  }
  // More rows than a sample() has.
  const int32_t n = 21;
  make(33, 4, 4);
  const auto logits = random_floats(n * 33, 6);
  std::vector<int32_t> ids(n, 5);
  SampledRow* out = output<SampledRow>(n);
  const float* x = upload(logits);
  const int32_t* on_device = upload(ids);
  stream_->launch([&] { sampler_->logprobs(on_device, x, n, 0, out, *stream_); });
  const auto scored = download(out, n);
  for (int32_t i = 0; i < n; ++i)
    EXPECT_NEAR(scored[i].logprob, Sampler::logprobs(&logits[i * 33], 33, 5, 0).chosen.logprob,
                1e-5);
}

TEST_F(CudaSampler, RefusesWhatAPlaceCannotHold) {
  make(5000, 2, 2);
  Sequence s{.sampling = {.temperature = 0}, .history = {0}, .forbidden = {}};
  for (int32_t t = 0; t < 512; ++t) s.sampling.logit_bias.emplace_back(t, 1.0f);
  EXPECT_TRUE(admit(0, s).ok());
  s.sampling.logit_bias.emplace_back(7, 1.0f);      // known already
  s.sampling.logit_bias.emplace_back(70000, 1.0f);  // no token
  EXPECT_TRUE(admit(0, s).ok());
  s.sampling.logit_bias.emplace_back(600, 1.0f);
  EXPECT_EQ(admit(0, s).code(), Code::kResourceExhausted);
  s.sampling.logit_bias.clear();
  for (int32_t t = 0; t < 65; ++t) s.forbidden.push_back(t);
  EXPECT_TRUE(admit(0, s).ok());  // none is used
  s.sampling.min_new_tokens = 1;
  EXPECT_EQ(admit(0, s).code(), Code::kResourceExhausted);
  EXPECT_FALSE(admit(2, s).ok());
  EXPECT_GT(sampler_->bytes(), 2 * 5000 * 4);
}

// A captured launch reads everything anew.
TEST_F(CudaSampler, InAGraph) {
  const int32_t vocab = 9000, n = 5;
  make(vocab, n, n);
  std::vector<int32_t> places = {4, 2, -1, 0, 1};
  auto graph = stream_->capture(
      "sampling", [&] { sampler_->sample(places_, positions_, logits_, n, *stream_); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  Sampler cpu;
  for (int32_t round = 0; round < 6; ++round) {
    std::vector<Sequence> sequences(n);
    for (int32_t p = 0; p < n; ++p) {
      SamplingParams& s = sequences[p].sampling;
      s.temperature = (round + p) % 3 == 0 ? 0.0f : 0.7f;
      s.top_p = (round + p) % 3 == 1 ? 0.9f : 1.0f;
      s.seed = 10 * round + p;
      sequences[p].history = {0};
      ASSERT_TRUE(admit(p, sequences[p]).ok());
    }
    std::rotate(places.begin(), places.begin() + 1, places.end());
    const std::vector<int32_t> positions(n, round * 3);
    const auto logits = random_floats(static_cast<size_t>(n) * vocab, round, 3);
    stream_->copy(places_, places.data(), n * 4);
    stream_->copy(positions_, positions.data(), n * 4);
    stream_->copy(logits_, logits.data(), int64_t{n} * vocab * 4);
    (*graph)->launch(*stream_);
    const auto got = results(n);
    for (int32_t i = 0; i < n; ++i) {
      if (places[i] < 0) continue;
      EXPECT_EQ(got[i].token, sequences[places[i]].sample(row_of(logits, i), round * 3, cpu).token)
          << "round " << round << ", row " << i;
    }
  }
}

}  // namespace
}  // namespace attune::ops
