// MLA both ways against numpy's float64 (tools/golden_attention.py): the ragged path's up-projected
// rows and the absorbed path's latents are one problem, and give one result.
#include <gtest/gtest.h>

#include "attention/route.h"
#include "golden.h"
#include "suite.h"

namespace attune::attention::test {
namespace {

struct MlaCase {
  int32_t heads, nope, rope, rank, v_dim;
  LayerParams layer;
  std::vector<Seq> seqs;
  std::vector<float> w_uk, w_uv;  // [heads, nope, rank], [heads, v_dim, rank]
  Output want, latent;            // out [tokens, heads, v_dim], and before W_uv [.., rank]
};

std::vector<float> floats(const Json& rows) {
  std::vector<float> all;
  for (const Json& row : rows.as_array())
    for (const Json& x : row.as_array()) all.push_back(static_cast<float>(x.as_double()));
  return all;
}

std::vector<float> weights(uint32_t salt, int64_t count) {
  std::vector<float> w = golden_values(salt, count);
  for (float& x : w) x /= 4;
  return w;
}

MlaCase mla_case(const Json& c) {
  MlaCase m{.heads = number(c, "heads"),
            .nope = number(c, "nope"),
            .rope = number(c, "rope"),
            .rank = number(c, "rank"),
            .v_dim = number(c, "v_dim")};
  m.layer.q_heads = m.heads;
  m.layer.scale = static_cast<float>(c.find("scale")->as_double());
  for (const Json& s : c.find("seqs")->as_array())
    m.seqs.push_back({number(s, "q_len"), number(s, "kv_len"), 1});
  m.w_uk = weights(101, int64_t{m.heads} * m.nope * m.rank);
  m.w_uv = weights(102, int64_t{m.heads} * m.v_dim * m.rank);
  m.want.out = floats(*c.find("out"));
  m.latent.out = floats(*c.find("latent"));
  for (const Json& x : c.find("lse")->as_array())
    m.want.lse.push_back(static_cast<float>(x.as_double()));
  m.latent.lse = m.want.lse;
  m.want.v_dim = m.v_dim;
  m.latent.v_dim = m.rank;
  return m;
}

// Row r of a matrix [.., n] with a vector.
float dot(const std::vector<float>& matrix, int64_t r, int32_t n, const float* x) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += double(matrix[r * n + i]) * x[i];
  return static_cast<float>(sum);
}

Problem ragged_problem(const MlaCase& m, Path path) {
  Problem p(ragged(m.heads, m.nope + m.rope, m.v_dim, path), m.seqs);
  std::vector<float> q;
  for (int32_t s = 0; s < static_cast<int32_t>(m.seqs.size()); ++s) {
    const int32_t qk = m.nope + m.rope, width = m.rank + m.rope;
    const auto mine = golden_values(3 * s, int64_t{m.seqs[s].q_len} * m.heads * qk);
    q.insert(q.end(), mine.begin(), mine.end());
    const auto rows = golden_values(3 * s + 1, int64_t{m.seqs[s].kv_len} * width);
    for (int32_t t = 0; t < m.seqs[s].kv_len; ++t) {
      const float* c = rows.data() + t * width;
      for (int32_t h = 0; h < m.heads; ++h) {
        for (int32_t d = 0; d < m.nope; ++d)
          p.poke(s, t, h, d, false, dot(m.w_uk, int64_t{h} * m.nope + d, m.rank, c));
        for (int32_t d = 0; d < m.rope; ++d) p.poke(s, t, h, m.nope + d, false, c[m.rank + d]);
        for (int32_t d = 0; d < m.v_dim; ++d)
          p.poke(s, t, h, d, true, dot(m.w_uv, int64_t{h} * m.v_dim + d, m.rank, c));
      }
    }
  }
  p.set_q(std::move(q));
  return p;
}

Problem absorbed_problem(const MlaCase& m, int32_t page_size) {
  Shape shape = absorbed(m.heads, m.rank, m.rope);
  shape.page_size = page_size;
  Problem p(shape, m.seqs);
  std::vector<float> q;
  for (int32_t s = 0; s < static_cast<int32_t>(m.seqs.size()); ++s) {
    const int32_t qk = m.nope + m.rope, width = m.rank + m.rope;
    const auto heads = golden_values(3 * s, int64_t{m.seqs[s].q_len} * m.heads * qk);
    for (int32_t row = 0; row < m.seqs[s].q_len * m.heads; ++row) {
      const float* from = heads.data() + row * qk;
      for (int32_t r = 0; r < m.rank; ++r) {
        double sum = 0;
        for (int32_t d = 0; d < m.nope; ++d)
          sum += double(m.w_uk[(int64_t{row % m.heads} * m.nope + d) * m.rank + r]) * from[d];
        q.push_back(static_cast<float>(sum));
      }
      q.insert(q.end(), from + m.nope, from + qk);
    }
    const auto rows = golden_values(3 * s + 1, int64_t{m.seqs[s].kv_len} * width);
    for (size_t i = 0; i < rows.size(); ++i)
      p.poke(s, static_cast<int32_t>(i) / width, 0, static_cast<int32_t>(i) % width, false,
             rows[i]);
  }
  p.set_q(std::move(q));
  return p;
}

// The new tokens causally, the prefixes in chunks of `capacity` keys, all merged.
Output chunked(const Runner& runner, const MlaCase& m, int64_t capacity) {
  Problem p = ragged_problem(m, Path::kChunked);
  std::vector<int32_t> prefixes;
  std::vector<std::pair<int32_t, int32_t>> keys;
  for (const Seq& s : m.seqs) {
    prefixes.push_back(s.kv_len - s.q_len);
    keys.push_back({s.kv_len - s.q_len, s.kv_len});
  }
  p.set_keys(keys, true);
  std::vector<Output> parts = {runner.run(p, Phase::kPrefill, m.layer)};
  for (const PrefixChunk& chunk : chunk_prefixes(prefixes, capacity)) {
    keys.assign(m.seqs.size(), {0, 0});
    for (const PrefixChunk::Range& r : chunk.ranges) keys[r.seq] = {r.begin, r.end};
    p.set_keys(keys, false);
    parts.push_back(runner.run(p, Phase::kPrefill, m.layer));
  }
  return merge(parts, m.heads, m.v_dim);
}

// W_uv after the absorbed path.
Output project(const MlaCase& m, const Output& latent) {
  Output o{{}, latent.lse};
  for (size_t row = 0; row * m.rank < latent.out.size(); ++row)
    for (int32_t d = 0; d < m.v_dim; ++d)
      o.out.push_back(dot(m.w_uv, int64_t(row % m.heads) * m.v_dim + d, m.rank,
                          latent.out.data() + row * m.rank));
  return o;
}

class MlaGolden : public Suite {};

TEST_P(MlaGolden, RaggedChunkedAndAbsorbedAreOneProblem) {
  const auto cases = golden_cases("attention_mla.json");
  ASSERT_TRUE(cases.ok()) << cases.status().to_string();
  ASSERT_GE(cases->as_array().size(), 4u);
  for (const Json& json : cases->as_array()) {
    MlaCase m = mla_case(json);
    const std::string name = json.find("name")->as_string();
    const Problem whole = ragged_problem(m, Path::kChunked);
    if (!serves(whole.shape()) || !serves(absorbed_problem(m, 1).shape())) return;
    m.layer.kv_heads = m.heads;
    for (Path path : {Path::kRagged, Path::kOneShot})
      expect_close(runner_.run(ragged_problem(m, path), Phase::kPrefill, m.layer), m.want, 1e-5,
                   1e-5, name + ", " + path_name(path));
    for (int64_t capacity : {1000, 50, 7})
      expect_close(chunked(runner_, m, capacity), m.want, 1e-5, 1e-5, name + ", chunked");
    m.layer.kv_heads = 1;
    for (int32_t page_size : {1, 16}) {
      for (Phase phase : {Phase::kPrefill, Phase::kDecode, Phase::kVerify}) {
        if (phase == Phase::kDecode && m.seqs[0].q_len > 1) continue;
        const Output got = runner_.run(absorbed_problem(m, page_size), phase, m.layer);
        expect_close(got, m.latent, 1e-5, 1e-5, name + ", latent");
        expect_close(project(m, got), m.want, 3e-5, 1e-5, name + ", absorbed");
      }
    }
  }
}
ATTUNE_SUITE(MlaGolden);

}  // namespace
}  // namespace attune::attention::test
