#include "ops/sample/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace attune::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
// As SGLang: colder than this is greedy (and 1/T would overflow).
constexpr float kGreedyBelow = 1e-6f;

// exp(x) for x <= 0, branch-free so that loops over it vectorise; relative error below 2e-7 down to
// -87, 0 below. Cody-Waite reduction and the Cephes expf polynomial.
inline float exp_nonpositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = std::nearbyint(clamped * 1.44269504089f);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

struct Peak {
  float value = -kInf;
  bool finite = true;  // no NaN and no +inf; -inf is a masked token
};

Peak find_peak(const float* x, int32_t n) {
  float peak = -kInf;
  int32_t bad = 0;
  for (int32_t i = 0; i < n; ++i) {
    bad |= !(x[i] < kInf);  // true for NaN and +inf
    peak = x[i] > peak ? x[i] : peak;
  }
  return {peak, bad == 0 && peak > -kInf};
}

TokenId argmax(const float* x, int32_t n, float peak) {
  return static_cast<TokenId>(std::find(x, x + n, peak) - x);  // the first of equals
}

// Blocks keep float sums short; the sum of blocks is in double.
constexpr int32_t kBlock = 1024;

double block_sum(const float* x, int32_t n) {
  float lanes[8] = {};
  int32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) lanes[k] += x[i + k];
  double sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (float lane : lanes) sum += lane;
  return sum;
}

double log_sum_exp(const float* x, int32_t n, float peak) {
  double sum = 0;
  float block[kBlock];
  for (int32_t b = 0; b < n; b += kBlock) {
    const int32_t len = std::min(kBlock, n - b);
    for (int32_t i = 0; i < len; ++i) block[i] = exp_nonpositive(x[b + i] - peak);
    sum += block_sum(block, len);
  }
  return peak + std::log(sum);
}

void apply_bias(float* logits, int32_t vocab, const SamplingParams& s) {
  for (const auto& [token, bias] : s.logit_bias)
    if (token >= 0 && token < vocab) logits[token] += bias;
}

// Repetition: CTRL (arXiv:1909.05858) section 4.1, prompt and output. Presence and frequency:
// OpenAI API, output.
void apply_penalties(const SampleParams& p) {
  const SamplingParams& s = *p.sampling;
  for (const TokenCount& c : p.counts) {
    float& l = p.logits[c.token];
    // A tiny penalty asks for repetition; no quotient may become infinite.
    if (s.repetition_penalty != 1.0f)
      l = l > 0 ? std::min(l / s.repetition_penalty, std::numeric_limits<float>::max())
                : l * s.repetition_penalty;
    if (c.in_output > 0)
      l -= s.presence_penalty + s.frequency_penalty * static_cast<float>(c.in_output);
  }
}

uint32_t mul_hi_lo(uint32_t a, uint32_t b, uint32_t* hi) {
  const uint64_t product = uint64_t{a} * b;
  *hi = static_cast<uint32_t>(product >> 32);
  return static_cast<uint32_t>(product);
}

}  // namespace

double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t hi0, hi1;
    const uint32_t lo0 = mul_hi_lo(0xD2511F53u, c[0], &hi0);
    const uint32_t lo1 = mul_hi_lo(0xCD9E8D57u, c[2], &hi1);
    const uint32_t next[4] = {hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0};
    std::copy(next, next + 4, c);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t bits = (uint64_t{c[1]} << 32 | c[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

LogprobEntry Sampler::logprobs(const float* logits, int32_t vocab, TokenId chosen, int32_t top) {
  const Peak peak = find_peak(logits, vocab);
  LogprobEntry entry;
  entry.chosen.token = chosen;
  if (!peak.finite) {
    entry.chosen.logprob = std::numeric_limits<float>::quiet_NaN();
    return entry;
  }
  const double lse = log_sum_exp(logits, vocab, peak.value);
  auto logprob = [&](TokenId t) { return static_cast<float>(logits[t] - lse); };
  if (chosen >= 0 && chosen < vocab) entry.chosen.logprob = logprob(chosen);
  top = std::min(top, vocab);
  if (top <= 0) return entry;
  // A heap of the `top` likeliest; ties go to the smaller id.
  auto better = [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::vector<TokenId> heap;
  for (TokenId t = 0; t < vocab; ++t) {
    if (static_cast<int32_t>(heap.size()) < top) {
      heap.push_back(t);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (better(t, heap.front())) {
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = t;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  for (TokenId t : heap) entry.top.push_back({t, logprob(t)});
  return entry;
}

Sampled Sampler::sample(const SampleParams& p) {
  const SamplingParams& s = *p.sampling;
  if (!find_peak(p.logits, p.vocab).finite) return {};
  const bool wants_logprob = p.top_logprobs >= 0;
  const bool changes = !s.logit_bias.empty() || !p.counts.empty() || !p.forbidden.empty();
  if (wants_logprob && changes) raw_.assign(p.logits, p.logits + p.vocab);
  apply_bias(p.logits, p.vocab, s);
  apply_penalties(p);
  for (TokenId t : p.forbidden)
    if (t >= 0 && t < p.vocab) p.logits[t] = -kInf;
  Sampled out;
  out.token = draw(p);
  if (wants_logprob && out.token >= 0)
    out.logprob = logprobs(changes ? raw_.data() : p.logits, p.vocab, out.token, p.top_logprobs);
  return out;
}

TokenId Sampler::draw(const SampleParams& p) {
  const SamplingParams& s = *p.sampling;
  const Peak peak = find_peak(p.logits, p.vocab);
  if (!peak.finite) return -1;
  if (s.temperature < kGreedyBelow || s.top_k == 1) return argmax(p.logits, p.vocab, peak.value);

  // p_i = exp((l_i - max) / T); the likeliest has 1, so min-p is a plain bound.
  probs_.resize(p.vocab);
  const float inverse = 1.0f / s.temperature;
  for (int32_t i = 0; i < p.vocab; ++i)
    probs_[i] = exp_nonpositive((p.logits[i] - peak.value) * inverse);
  const double u = philox_uniform(p.seed, static_cast<uint64_t>(p.position));

  const bool top_k = s.top_k > 0 && s.top_k < p.vocab;
  if (!top_k && s.top_p >= 1.0f) {
    // Inverse of the cumulative distribution in id order, of all ids that min-p leaves.
    double total = 0;
    if (s.min_p > 0)
      for (float& v : probs_) v = v < s.min_p ? 0.0f : v;
    for (int32_t b = 0; b < p.vocab; b += kBlock)
      total += block_sum(&probs_[b], std::min(kBlock, p.vocab - b));
    double left = u * total;
    TokenId last = 0;
    for (int32_t b = 0; b < p.vocab; b += kBlock) {
      const int32_t len = std::min(kBlock, p.vocab - b);
      const double block = block_sum(&probs_[b], len);
      if (left >= block && b + len < p.vocab) {
        left -= block;
        continue;
      }
      for (int32_t i = b; i < b + len; ++i) {
        if (probs_[i] <= 0) continue;
        last = i;
        if (left < probs_[i]) return i;
        left -= probs_[i];
      }
    }
    // Rounding went past the end: the last id that has any probability.
    if (probs_[last] > 0) return last;
    return argmax(p.logits, p.vocab, peak.value);
  }

  // Sorted candidates. Most of the mass lies in few ids: try those above a bound first.
  double total = 0;
  for (int32_t b = 0; b < p.vocab; b += kBlock)
    total += block_sum(&probs_[b], std::min(kBlock, p.vocab - b));
  auto better = [](const Candidate& a, const Candidate& b) {
    return a.p != b.p ? a.p > b.p : a.token < b.token;
  };
  size_t keep = 0;
  for (float bound : {1e-3f, 0.0f}) {
    candidates_.clear();
    double mass = 0;
    for (int32_t i = 0; i < p.vocab; ++i) {
      if (probs_[i] <= bound) continue;
      candidates_.push_back({probs_[i], i});
      mass += probs_[i];
    }
    const bool enough_k = top_k && candidates_.size() >= static_cast<size_t>(s.top_k);
    const bool enough_p = !top_k && mass >= s.top_p * total;
    if (bound > 0 && !enough_k && !enough_p) continue;
    std::sort(candidates_.begin(), candidates_.end(), better);
    if (top_k && candidates_.size() > static_cast<size_t>(s.top_k)) candidates_.resize(s.top_k);
    // top-p is of what top-k leaves.
    double base = total;
    if (top_k) {
      base = 0;
      for (const Candidate& c : candidates_) base += c.p;
    }
    double cumulative = 0;
    for (keep = 0; keep < candidates_.size();) {
      cumulative += candidates_[keep++].p;
      if (cumulative >= s.top_p * base) break;
    }
    break;
  }
  double sum = 0;
  size_t n = 0;
  for (; n < keep && (n == 0 || candidates_[n].p >= s.min_p); ++n) sum += candidates_[n].p;
  double left = u * sum;
  for (size_t i = 0; i < n; ++i) {
    if (left < candidates_[i].p) return candidates_[i].token;
    left -= candidates_[i].p;
  }
  return candidates_[n - 1].token;
}

}  // namespace attune::ops
