// Latent attention on every path, by hand-made groups: the same hidden states, which are those of
// transformers (tools/golden_deepseek.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "attention/registry.h"
#include "attention/route.h"
#include "formats/json.h"
#include "model/decoder.h"
#include "model/family.h"

namespace attune::model {
namespace {

using attention::Path;
using tensor::DType;

constexpr int32_t kPage = 4, kSlots = 64, kMaxTokens = 64;

std::string golden_path(const std::string& name) {
  return std::string(ATTUNE_SOURCE_DIR) + "/tests/golden/families/" + name;
}

formats::Json read_golden() {
  std::ifstream in(golden_path("deepseek.json"));
  std::stringstream text;
  text << in.rdbuf();
  Result<formats::Json> json = formats::parse_json(text.str());
  EXPECT_TRUE(json.ok());
  return json.ok() ? std::move(json).value() : formats::Json();
}

// Query rows of one sequence: tokens [start, end) of its text.
struct Extend {
  int seq = 0;
  int32_t start = 0, end = 0;
};

struct RigOptions {
  std::string backend = "cpu";
  bool deterministic = false;
  DType kv_dtype = DType::kF32, act = DType::kF32;
};

// A model with a pool of random pages, and groups made by hand.
class Rig {
 public:
  Rig(const std::string& name, int64_t capacity, const RigOptions& options = {})
      : capacity_(std::max<int64_t>(capacity, kMaxTokens)) {
    auto device = device::create_cpu_device(2, "");
    EXPECT_TRUE(device.ok()) << device.status().to_string();
    device_ = std::move(device).value();
    stream_ = device_->create_stream();
    const std::vector<formats::FamilyTraits> families = family_traits();
    auto model = formats::open_model(golden_path(name), "auto", 0, families);
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(model).value();
    auto decoder = Decoder::load(model_.config, *model_.weights,
                                 {.act = options.act,
                                  .deterministic = options.deterministic,
                                  .max_tokens = kMaxTokens,
                                  .mla_capacity = capacity},
                                 *device_, *stream_, ops::op_table(device_->info()), {});
    EXPECT_TRUE(decoder.ok()) << decoder.status().to_string();
    decoder_ = std::move(decoder).value();
    attention::BackendOrder order;
    for (attention::PhaseOrder& phase : order) phase.backends = {options.backend};
    auto router = attention::Router::create(order, *device_);
    EXPECT_TRUE(router.ok()) << router.status().to_string();
    router_ = std::move(router).value();
    deterministic_ = options.deterministic;
    make_pool(options.kv_dtype);
  }

  // Runs the extends, each on `path`; returns the logits of all rows.
  std::vector<float> run(const std::vector<std::vector<int32_t>>& texts,
                         const std::vector<Extend>& extends, Path path, int64_t chunk) {
    Arrays a;
    for (const Extend& e : extends) {
      for (int32_t p = e.start; p < e.end; ++p) {
        a.ids.push_back(texts[e.seq][p]);
        a.positions.push_back(p);
        a.slots.push_back(position_of(e.seq, p));
      }
    }
    const auto tokens = static_cast<int32_t>(a.ids.size());
    AttentionGroup group{.backend = &router_->backend(0), .num_tokens = tokens, .path = path};
    std::vector<Call> calls = make_calls(extends, path, chunk);
    std::vector<MlaPiece> pieces;
    for (Call& call : calls) {
      plan(call, path);
      pieces.push_back({call.plan.get(), 0, tokens, call.gather});
    }
    if (attention::reads_rows(path)) {
      group.pieces = pieces;
    } else {
      group.plan = calls[0].plan.get();
    }
    const std::vector<AttentionGroup> groups{group};
    std::vector<float> out(static_cast<size_t>(tokens) * model_.config.vocab_size);
    stream_->launch([&] {
      for (Call& call : calls) group.backend->plan_on(*call.plan, *stream_);
      decoder_->forward({.num_tokens = tokens,
                         .ids = a.ids.data(),
                         .positions = a.positions.data(),
                         .slot_mapping = a.slots.data(),
                         .groups = groups,
                         .kv = views_},
                        *stream_);
      std::vector<int32_t> rows(static_cast<size_t>(tokens));
      std::iota(rows.begin(), rows.end(), 0);
      decoder_->logits(rows.data(), tokens, out.data(), *stream_);
    });
    stream_->synchronize();
    return out;
  }

  const formats::ModelConfig& config() const { return model_.config; }

 private:
  struct Arrays {
    std::vector<int32_t> ids, positions;
    std::vector<int64_t> slots;
  };
  struct Call {
    std::vector<int32_t> q_indptr{0}, kv_len, kv_start, page_indptr{0}, page_slots;
    std::vector<int64_t> gather;
    bool causal = true;
    std::unique_ptr<attention::Plan> plan;
    device::Buffer workspace;
  };

  void make_pool(DType kv_dtype) {
    kv::KvGeometry g{.layer = kv_spec(model_.config, kv_dtype),
                     .layers = model_.config.num_layers,
                     .page_size = kPage};
    auto pool = device_->allocate(g.page_bytes() * kSlots, "pool");
    ASSERT_TRUE(pool.ok());
    pool_ = std::move(pool).value();
    std::fill_n(pool_.as<uint8_t>(), pool_.bytes(), uint8_t{0xff});  // NaN in every type
    for (int32_t i = 0; i < g.layers; ++i) {
      views_.push_back(kv::make_view(g, pool_.as<char>() + i * g.piece_bytes(), kSlots));
      views_.back().page_stride = g.page_bytes();
    }
    slots_.resize(kSlots - 1);
    std::iota(slots_.begin(), slots_.end(), 1);
    std::shuffle(slots_.begin(), slots_.end(), std::mt19937(5));
  }

  // 16 pages for each sequence.
  int64_t position_of(int seq, int32_t p) const {
    return int64_t{slots_[seq * 16 + p / kPage]} * kPage + p % kPage;
  }

  std::vector<Call> make_calls(const std::vector<Extend>& extends, Path path, int64_t chunk) const {
    std::vector<Call> calls(1);
    Call& first = calls[0];
    for (const Extend& e : extends) {
      first.q_indptr.push_back(first.q_indptr.back() + e.end - e.start);
      if (!attention::reads_rows(path)) {
        first.kv_len.push_back(e.end);
        for (int32_t p = 0; p < e.end; p += kPage)
          first.page_slots.push_back(static_cast<int32_t>(position_of(e.seq, p) / kPage));
        first.page_indptr.push_back(static_cast<int32_t>(first.page_slots.size()));
        continue;
      }
      const int32_t begin = path == Path::kOneShot ? 0 : e.start;
      first.kv_start.push_back(static_cast<int32_t>(first.gather.size()));
      first.kv_len.push_back(e.end - begin);
      for (int32_t p = begin; p < e.end; ++p) first.gather.push_back(position_of(e.seq, p));
    }
    // The group's own tokens in order need no list.
    if (path == Path::kRagged || path == Path::kChunked) first.gather.clear();
    if (path == Path::kChunked) add_chunks(extends, chunk, calls);
    return calls;
  }

  void add_chunks(const std::vector<Extend>& extends, int64_t chunk,
                  std::vector<Call>& calls) const {
    std::vector<int32_t> prefixes;
    for (const Extend& e : extends) prefixes.push_back(e.start);
    for (const attention::PrefixChunk& c : attention::chunk_prefixes(prefixes, chunk)) {
      Call call;
      call.causal = false;
      call.q_indptr = calls[0].q_indptr;
      call.kv_len.assign(extends.size(), 0);
      call.kv_start.assign(extends.size(), 0);
      for (const attention::PrefixChunk::Range& r : c.ranges) {
        call.kv_start[r.seq] = static_cast<int32_t>(call.gather.size());
        call.kv_len[r.seq] = r.end - r.begin;
        for (int32_t p = r.begin; p < r.end; ++p)
          call.gather.push_back(position_of(extends[r.seq].seq, p));
      }
      calls.push_back(std::move(call));
    }
  }

  void plan(Call& call, Path path) {
    const bool rows = attention::reads_rows(path);
    const AttentionShape shape = rows ? rows_shape(config()) : paged_shape(config());
    const attention::Limits limits{.max_seqs = 4,
                                   .max_tokens = kMaxTokens,
                                   .max_kv_len = 4 * kMaxTokens,
                                   .q_heads = shape.q_heads,
                                   .kv_heads = shape.kv_heads,
                                   .qk_dim = shape.qk_dim,
                                   .v_dim = shape.v_dim,
                                   .page_size = rows ? static_cast<int32_t>(capacity_) : kPage,
                                   .num_slots = rows ? 1 : kSlots,
                                   .threads = 2};
    const attention::Backend& backend = router_->backend(0);
    auto workspace = device_->allocate(backend.workspace_bytes(limits), "workspace");
    ASSERT_TRUE(workspace.ok());
    call.workspace = std::move(workspace).value();
    call.plan = backend.make_plan(limits, call.workspace.data());
    attention::Batch batch{.phase = attention::Phase::kPrefill,
                           .path = path,
                           .num_seqs = static_cast<int32_t>(call.kv_len.size()),
                           .num_tokens = call.q_indptr.back(),
                           .q_indptr = call.q_indptr.data(),
                           .kv_len = call.kv_len.data(),
                           .page_indptr = call.page_indptr.data(),
                           .page_slots = call.page_slots.data(),
                           .page_size = kPage,
                           .kv_start = call.kv_start.data(),
                           .causal = call.causal,
                           .deterministic = deterministic_};
    for (size_t s = 0; s < call.kv_len.size(); ++s) {
      batch.max_q_len = std::max(batch.max_q_len, call.q_indptr[s + 1] - call.q_indptr[s]);
      batch.max_kv_len = std::max(batch.max_kv_len, call.kv_len[s]);
    }
    const Status status = backend.plan(batch, *call.plan, *stream_);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  const int64_t capacity_;
  bool deterministic_ = false;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  formats::LoadedModel model_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<attention::Router> router_;
  device::Buffer pool_;
  std::vector<kv::PagedKvView> views_;
  std::vector<int32_t> slots_;
};

struct Case {
  const char* file;
  const char* golden;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.file;
}

class MlaPaths : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    golden_ = read_golden();
    for (const formats::Json& id : golden_.find("ids")->as_array())
      ids_.push_back(static_cast<int32_t>(id.as_int()));
  }

  // Logits of the rows [start, end) of transformers; those of a decoder in `got`.
  void expect_logits(const std::vector<float>& got, int32_t first_row, int32_t start, int32_t end) {
    const auto& rows = golden_.find("models")->find(GetParam().golden)->as_array();
    for (int32_t p = start; p < end; ++p) {
      const auto& want = rows[p].as_array();
      int wrong = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const double logit = got[(first_row + p - start) * want.size() + i];
        if (!(std::abs(want[i].as_double() - logit) < 1e-4)) ++wrong;  // NaN too
      }
      EXPECT_EQ(wrong, 0) << "position " << p;
    }
  }

  formats::Json golden_;
  std::vector<int32_t> ids_;
};

TEST_P(MlaPaths, PrefillIsThatOfTransformers) {
  const auto n = static_cast<int32_t>(ids_.size());
  for (const char* backend : {"cpu", "reference"}) {
    for (Path path : {Path::kAbsorbed, Path::kRagged, Path::kOneShot}) {
      SCOPED_TRACE(std::string(backend) + " " + attention::path_name(path));
      Rig rig(GetParam().file, 0, {.backend = backend});
      expect_logits(rig.run({ids_}, {{0, 0, n}}, path, 0), 0, 0, n);
    }
  }
}

// A prefix that the cache has and new tokens behind it, in pages that begin and end anywhere.
TEST_P(MlaPaths, ExtendsAreThoseOfTransformers) {
  const auto n = static_cast<int32_t>(ids_.size());
  for (const auto& [path, chunk] : std::vector<std::pair<Path, int64_t>>{{Path::kAbsorbed, 0},
                                                                         {Path::kOneShot, 0},
                                                                         {Path::kChunked, 1},
                                                                         {Path::kChunked, 5},
                                                                         {Path::kChunked, 16},
                                                                         {Path::kChunked, 100}}) {
    for (int32_t prefix : {1, 4, 17, n - 1}) {
      SCOPED_TRACE(std::string(attention::path_name(path)) + " chunk " + std::to_string(chunk) +
                   " prefix " + std::to_string(prefix));
      Rig rig(GetParam().file, chunk);
      rig.run({ids_}, {{0, 0, prefix}}, Path::kRagged, 0);
      expect_logits(rig.run({ids_}, {{0, prefix, n}}, path, chunk), 0, prefix, n);
    }
  }
}

// Sequences of all kinds together, one of them without a prefix: its rows of the chunks are empty.
TEST_P(MlaPaths, MixedBatchIsEachOneAlone) {
  std::vector<int32_t> other(ids_.rbegin(), ids_.rend());
  for (const auto& [path, chunk] : std::vector<std::pair<Path, int64_t>>{
           {Path::kAbsorbed, 0}, {Path::kOneShot, 0}, {Path::kChunked, 7}}) {
    SCOPED_TRACE(std::string(attention::path_name(path)));
    Rig rig(GetParam().file, 128);
    rig.run({ids_, other}, {{0, 0, 9}, {1, 0, 21}}, Path::kRagged, 0);
    const std::vector<float> got =
        rig.run({ids_, other, ids_}, {{0, 9, 20}, {1, 21, 25}, {2, 0, 12}}, path, chunk);
    expect_logits(got, 0, 9, 20);
    expect_logits(got, 15, 0, 12);
  }
}

TEST_P(MlaPaths, DecodeTokenByToken) {
  Rig rig(GetParam().file, 0);
  for (int32_t p = 0; p < 20; ++p)
    expect_logits(rig.run({ids_}, {{0, p, p + 1}}, Path::kAbsorbed, 0), 0, p, p + 1);
}

// In deterministic mode the absorbed path's bits depend neither on the batch nor on how the text
// was cut.
TEST_P(MlaPaths, DeterministicBitsHaveNoBatchMates) {
  Rig rig(GetParam().file, 0, {.deterministic = true});
  const auto vocab = static_cast<size_t>(rig.config().vocab_size);
  const std::vector<float> whole = rig.run({ids_}, {{0, 0, 30}}, Path::kAbsorbed, 0);
  std::vector<int32_t> other(ids_.rbegin(), ids_.rend());
  rig.run({other, ids_}, {{0, 0, 5}, {1, 0, 13}}, Path::kAbsorbed, 0);
  const std::vector<float> cut =
      rig.run({other, ids_}, {{0, 5, 7}, {1, 13, 30}}, Path::kAbsorbed, 0);
  for (size_t i = 0; i < 17 * vocab; ++i)
    ASSERT_EQ(whole[13 * vocab + i], cut[2 * vocab + i]) << "row " << i / vocab;
}

// What the pool rounds, every path reads. (Later layers' rows may round the other way, by a path's
// own rounding.)
TEST_P(MlaPaths, HalfPoolsAreReadAlike) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(tensor::dtype_name(dtype));
    std::vector<std::vector<float>> logits;
    for (const auto& [path, chunk] : std::vector<std::pair<Path, int64_t>>{
             {Path::kAbsorbed, 0}, {Path::kOneShot, 0}, {Path::kChunked, 7}}) {
      Rig rig(GetParam().file, 0, {.kv_dtype = dtype});
      rig.run({ids_}, {{0, 0, 21}}, Path::kRagged, 0);
      logits.push_back(rig.run({ids_}, {{0, 21, 40}}, path, chunk));
    }
    for (size_t i = 0; i < logits[0].size(); ++i) {
      ASSERT_NEAR(logits[0][i], logits[1][i], 1e-2);
      ASSERT_NEAR(logits[1][i], logits[2][i], 1e-2);
    }
  }
}

// Rounded activations move logits a little, and now and then a token to another expert.
TEST_P(MlaPaths, Bfloat16ActivationsAreClose) {
  if (device::detect_cpu_isa() < device::CpuIsa::kAvx512Bf16)
    GTEST_SKIP() << "needs a CPU with bfloat16 products";
  const auto n = static_cast<int32_t>(ids_.size());
  const auto& rows = golden_.find("models")->find(GetParam().golden)->as_array();
  for (Path path : {Path::kAbsorbed, Path::kRagged, Path::kOneShot}) {
    SCOPED_TRACE(attention::path_name(path));
    Rig rig(GetParam().file, 0, {.kv_dtype = DType::kBF16, .act = DType::kBF16});
    const std::vector<float> got = rig.run({ids_}, {{0, 0, n}}, path, 0);
    double sum = 0;
    for (int32_t p = 0; p < n; ++p)
      for (size_t i = 0; i < 96; ++i)
        sum += std::abs(rows[p].as_array()[i].as_double() - got[p * 96 + i]);
    EXPECT_LT(sum / (n * 96), 0.05);  // logits are of deviation 2
  }
}

INSTANTIATE_TEST_SUITE_P(All, MlaPaths,
                         ::testing::Values(Case{"deepseek_v2", "deepseek_v2"},
                                           Case{"deepseek_v2.gguf", "deepseek_v2"},
                                           Case{"deepseek_v2_groups", "deepseek_v2_groups"},
                                           Case{"deepseek_v3", "deepseek_v3"},
                                           Case{"deepseek_v3.gguf", "deepseek_v3"}),
                         [](const auto& info) {
                           std::string name = info.param.file;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace attune::model
