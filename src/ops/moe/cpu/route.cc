#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/cpu_kernels.h"

namespace attune::ops::cpu {
namespace {

constexpr int32_t kMaxExperts = 4096;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

void softmax(const float* x, int32_t n, float* out) {
  const float top = *std::max_element(x, x + n);
  float sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += out[i] = std::exp(x[i] - top);
  for (int32_t i = 0; i < n; ++i) out[i] /= sum;
}

// The index of the largest, the lowest of equals; NaN (taken) is never it unless all are.
int32_t argmax(const float* x, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; ++i)
    if (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))) best = i;
  return best;
}

float group_score(const float* x, int32_t n, bool top2) {
  float first = kMinusInf, second = kMinusInf;
  for (int32_t i = 0; i < n; ++i) {
    if (x[i] > first) {
      second = first;
      first = x[i];
    } else if (x[i] > second) {
      second = x[i];
    }
  }
  return top2 ? first + second : first;
}

// Experts of all groups but the best get -inf.
void keep_best_groups(const MoeRouteParams& p, float* choice) {
  float scores[kMaxExperts];
  bool kept[kMaxExperts] = {};
  const int32_t each = p.experts / p.groups;
  for (int32_t g = 0; g < p.groups; ++g)
    scores[g] = group_score(choice + g * each, each, p.group_top2);
  for (int32_t i = 0; i < p.top_groups; ++i) {
    const int32_t best = argmax(scores, p.groups);
    kept[best] = true;
    scores[best] = kMinusInf;
  }
  for (int32_t g = 0; g < p.groups; ++g)
    if (!kept[g]) std::fill_n(choice + g * each, each, kMinusInf);
}

void route_token(const MoeRouteParams& p, int64_t t) {
  float scores[kMaxExperts], choice[kMaxExperts];
  const float* logits = p.logits + t * p.experts;
  if (p.sigmoid) {
    for (int32_t e = 0; e < p.experts; ++e) scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  } else {
    softmax(logits, p.experts, scores);
  }
  bool broken = false;
  for (int32_t e = 0; e < p.experts; ++e) {
    choice[e] = scores[e] + (p.bias ? p.bias[e] : 0.0f);
    broken |= std::isnan(choice[e]);
  }
  int32_t* ids = p.ids + t * p.top_k;
  float* weights = p.weights + t * p.top_k;
  if (broken) {  // no choice is right: the row becomes NaN, and its request ends with that error
    for (int32_t j = 0; j < p.top_k; ++j) {
      ids[j] = j;
      weights[j] = std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  if (p.groups > 1) keep_best_groups(p, choice);
  float sum = 0;
  for (int32_t j = 0; j < p.top_k; ++j) {
    ids[j] = argmax(choice, p.experts);
    choice[ids[j]] = std::numeric_limits<float>::quiet_NaN();  // taken
    sum += weights[j] = scores[ids[j]];
  }
  const float factor = p.normalize ? p.scale / (sum + 1e-20f) : p.scale;
  for (int32_t j = 0; j < p.top_k; ++j) weights[j] *= factor;
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream& stream) {
  ATTUNE_CHECK(p.experts <= kMaxExperts && p.top_k <= p.experts);
  // An exp costs some 5 ns, and each choice reads all scores: like 64 bytes of traffic and more.
  for_rows(stream, p.tokens, int64_t{p.experts} * (64 + 4 * p.top_k),
           [&](int64_t begin, int64_t end) {
             for (int64_t t = begin; t < end; ++t) route_token(p, t);
           });
}

}  // namespace attune::ops::cpu
