// Every model family against the logits that transformers computes for small random models
// (tools/golden_families.py, golden_deepseek.py, golden_qwen3_moe.py, golden_gpu.py), whole and in
// chunks, prefilled and decoded.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/testing.h"

namespace attune {
namespace {

using engine::testing::ids_of;
using engine::testing::log_softmax;
using engine::testing::make_engine;
using engine::testing::read_golden;
using engine::testing::start;

// Logits have 4 or 5 digits behind the point.
void expect_row(const LogprobEntry& got, const std::vector<double>& want, double near) {
  ASSERT_EQ(got.top.size(), want.size());
  for (const TokenLogprob& t : got.top)
    EXPECT_NEAR(t.logprob, want[t.token], near) << "token " << t.token;
}

struct Case {
  const char* file;    // below tests/golden/families
  const char* golden;  // whose logits
  const char* logits = "families/logits.json";
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.file;
}

constexpr char kDeepseek[] = "families/deepseek.json";
constexpr char kQwen3Moe[] = "families/qwen3_moe.json";
constexpr char kGpu[] = "families/gpu.json";  // heads of the sizes that GPU libraries serve

struct Golden {
  std::vector<TokenId> ids, rows;             // rows: places whose logits are known
  std::vector<std::vector<double>> logprobs;  // of the rows
  double near = 1e-4;
};

Golden golden_of(const Case& c) {
  const formats::Json file = read_golden(c.logits);
  const formats::Json* logits = file.find("models")->find(c.golden);
  Golden golden;
  if (c.logits == kGpu) {  // ids of each model's own, and every row
    golden.near = 2e-4;
    golden.ids = ids_of(*logits->find("ids"));
    golden.rows.resize(golden.ids.size());
    std::iota(golden.rows.begin(), golden.rows.end(), 0);
    logits = logits->find("logits");
  } else {
    golden.ids = ids_of(*file.find("ids"));
    golden.rows = ids_of(*file.find("rows"));
  }
  for (const formats::Json& row : logits->as_array()) golden.logprobs.push_back(log_softmax(row));
  return golden;
}

class Family : public ::testing::TestWithParam<Case> {
 protected:
  Options options() const {
    Options options;
    options.model = std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/families/" + GetParam().file;
    options.dtype = "float32";
    options.max_total_tokens = 512;
    options.threads = 2;
    return options;
  }
};

TEST_P(Family, LogitsAreThoseOfTransformers) {
  const Golden golden = golden_of(GetParam());
  const std::vector<TokenId>&ids = golden.ids, &which = golden.rows;
  ASSERT_EQ(which.size(), golden.logprobs.size());
  const auto n = static_cast<int32_t>(ids.size());
  for (const auto& [chunk, attention] : {std::pair{256, "cpu"}, {7, "cpu"}, {256, "reference"}}) {
    SCOPED_TRACE(std::to_string(chunk) + " " + attention);
    Options o = options();
    o.chunked_prefill_size = chunk;
    o.attention_backend = attention;
    auto engine = make_engine(o);
    ASSERT_TRUE(engine);
    const int32_t vocab = engine->model().vocab_size;
    auto run = start(*engine, ids,
                     {.temperature = 0,
                      .max_new_tokens = 1,
                      .ignore_eos = true,
                      .top_logprobs = vocab,
                      .prompt_logprob_start = 0});
    run->wait();
    ASSERT_EQ(run->error, "");
    ASSERT_EQ(run->prompt_logprobs.size(), ids.size() - 1);
    ASSERT_EQ(run->logprobs.size(), 1u);
    for (size_t i = 0; i < which.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(which[i]));
      const LogprobEntry& got = which[i] == n - 1
                                    ? run->logprobs[0]
                                    : run->prompt_logprobs[which[i] + 1 - run->prompt_first];
      expect_row(got, golden.logprobs[i], golden.near);
    }
  }
}

// Decoding token by token gives what one prefill of the same tokens gives: across pages and
// windows.
TEST_P(Family, DecodeEqualsPrefill) {
  const std::vector<TokenId> ids = golden_of(GetParam()).ids;
  auto engine = make_engine(options());
  ASSERT_TRUE(engine);
  const std::vector<TokenId> head(ids.begin(), ids.begin() + 5);
  auto decoded =
      start(*engine, head,
            {.temperature = 0, .max_new_tokens = 40, .ignore_eos = true, .top_logprobs = 0});
  decoded->wait();
  ASSERT_EQ(decoded->tokens.size(), 40u);
  ASSERT_TRUE(engine->flush_cache().ok());
  std::vector<TokenId> whole = head;
  whole.insert(whole.end(), decoded->tokens.begin(), decoded->tokens.end());
  auto scored = start(*engine, whole,
                      {.temperature = 0,
                       .max_new_tokens = 0,
                       .ignore_eos = true,
                       .top_logprobs = 0,
                       .prompt_logprob_start = static_cast<int32_t>(head.size())});
  scored->wait();
  ASSERT_EQ(scored->prompt_logprobs.size(), 40u);
  for (size_t i = 0; i < 40; ++i)
    EXPECT_NEAR(scored->prompt_logprobs[i].chosen.logprob, decoded->logprobs[i].chosen.logprob,
                1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    All, Family,
    ::testing::Values(
        Case{"llama", "llama"}, Case{"llama.gguf", "llama"}, Case{"llama3", "llama3"},
        Case{"llama_yarn", "llama_yarn"}, Case{"mistral", "mistral"}, Case{"qwen2", "qwen2"},
        Case{"qwen2.gguf", "qwen2"}, Case{"qwen3", "qwen3"},
        Case{"qwen3_moe", "qwen3_moe", kQwen3Moe}, Case{"qwen3_moe.gguf", "qwen3_moe", kQwen3Moe},
        Case{"qwen3_moe_mixed", "qwen3_moe_mixed", kQwen3Moe},
        Case{"deepseek_v2", "deepseek_v2", kDeepseek},
        Case{"deepseek_v2.gguf", "deepseek_v2", kDeepseek},
        Case{"deepseek_v2_groups", "deepseek_v2_groups", kDeepseek},
        Case{"deepseek_v3", "deepseek_v3", kDeepseek},
        Case{"deepseek_v3.gguf", "deepseek_v3", kDeepseek}, Case{"llama_d64", "llama_d64", kGpu},
        Case{"mistral_d64", "mistral_d64", kGpu}, Case{"qwen3_d128", "qwen3_d128", kGpu},
        Case{"qwen3_moe_d128", "qwen3_moe_d128", kGpu},
        Case{"deepseek_v2_576", "deepseek_v2_576", kGpu},
        Case{"deepseek_v3_576", "deepseek_v3_576", kGpu}),
    [](const auto& info) {
      std::string name = info.param.file;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

TEST(DummyWeights, RunFromAConfigAlone) {
  for (const char* name : {"qwen3", "qwen3_moe_mixed"}) {
    Options options;
    options.model =
        std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/families/" + name + "/config.json";
    options.load_format = "dummy";
    options.max_total_tokens = 256;
    auto engine = make_engine(options);
    ASSERT_TRUE(engine);
    auto run =
        start(*engine, {5, 6, 7}, {.temperature = 0, .max_new_tokens = 8, .ignore_eos = true});
    run->wait();
    EXPECT_EQ(run->tokens.size(), 8u) << name;
  }
}

}  // namespace
}  // namespace attune
