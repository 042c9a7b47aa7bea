// Every backend against attention by its definition in numpy's float64 (tools/golden_attention.py).
#include "golden.h"

#include <gtest/gtest.h>

#include <limits>

#include "suite.h"

namespace attune::attention::test {
namespace {

struct GoldenCase {
  std::string name;
  Problem problem;
  LayerParams layer;
  std::vector<float> sinks;
  Output want;
  bool tree = false;
};

Problem problem_of(const Json& c, const Shape& shape) {
  std::vector<Seq> seqs;
  for (const Json& s : c.find("seqs")->as_array())
    seqs.push_back({number(s, "q_len"), number(s, "kv_len"), 1});
  Problem p(shape, seqs);
  std::vector<float> q;
  std::vector<uint64_t> tree;
  for (size_t s = 0; s < seqs.size(); ++s) {
    const auto salt = static_cast<uint32_t>(3 * s);
    const auto mine = golden_values(salt, int64_t{seqs[s].q_len} * shape.q_heads * shape.qk_dim);
    q.insert(q.end(), mine.begin(), mine.end());
    for (const bool v_part : {false, true}) {
      const int32_t dim = v_part ? shape.v_dim : shape.qk_dim;
      const auto rows =
          golden_values(salt + (v_part ? 2 : 1), int64_t{seqs[s].kv_len} * shape.kv_heads * dim);
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto token = static_cast<int32_t>(i) / dim / shape.kv_heads;
        p.poke(static_cast<int32_t>(s), token, static_cast<int32_t>(i) / dim % shape.kv_heads,
               static_cast<int32_t>(i) % dim, v_part, rows[i]);
      }
    }
    if (const Json* words = c.find("seqs")->as_array()[s].find("tree"))
      for (const Json& word : words->as_array()) tree.push_back(word.as_int());
  }
  p.set_q(std::move(q));
  p.set_tree(std::move(tree));
  return p;
}

GoldenCase golden_case(const Json& c, int32_t page_size) {
  const Shape shape{.q_heads = number(c, "q_heads"),
                    .kv_heads = number(c, "kv_heads"),
                    .qk_dim = number(c, "qk_dim"),
                    .v_dim = number(c, "v_dim"),
                    .page_size = page_size,
                    .causal = c.find("causal")->as_bool()};
  GoldenCase g{c.find("name")->as_string(), problem_of(c, shape), {}, {}, {}};
  g.want.v_dim = shape.v_dim;
  g.tree = g.problem.batch(Phase::kVerify).tree_mask != nullptr;
  g.layer = g.problem.layer();
  g.layer.scale = static_cast<float>(c.find("scale")->as_double());
  g.layer.window = number(c, "window");
  g.layer.soft_cap = static_cast<float>(c.find("soft_cap")->as_double());
  for (const Json& s : c.find("sinks")->as_array())
    g.sinks.push_back(static_cast<float>(s.as_double()));
  for (const Json& row : c.find("out")->as_array())
    for (const Json& x : row.as_array()) g.want.out.push_back(static_cast<float>(x.as_double()));
  for (const Json& x : c.find("lse")->as_array())
    g.want.lse.push_back(x.is_null() ? -std::numeric_limits<float>::infinity()
                                     : static_cast<float>(x.as_double()));
  return g;
}

// Their values need the mantissa of float32, and any head dims.
class AttentionGolden : public Suite {};

TEST_P(AttentionGolden, MatchesNumpy) {
  const auto cases = golden_cases("attention.json");
  ASSERT_GE(cases->as_array().size(), 12u);
  for (const Json& c : cases->as_array()) {
    for (int32_t page_size : {1, 16}) {
      GoldenCase g = golden_case(c, page_size);
      if (!g.sinks.empty()) g.layer.sinks = g.sinks.data();
      if (!serves(g.problem.shape(), Phase::kVerify, g.layer, g.tree)) continue;
      expect_close(runner_.run(g.problem, Phase::kVerify, g.layer), g.want,
                   tolerance(g.problem.shape(), 3e-6), tolerance(g.problem.shape(), 1e-6), g.name);
    }
  }
}
ATTUNE_SUITE(AttentionGolden);

}  // namespace
}  // namespace attune::attention::test
