#include "attention/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace attune::attention {
namespace {

struct Arrays {
  std::vector<int32_t> q_indptr{0, 2, 3}, kv_len{20, 5}, page_indptr{0, 2, 3}, slots{4, 9, 1};
  std::vector<uint64_t> tree;
  Batch batch{.num_seqs = 2, .num_tokens = 3, .max_q_len = 2, .max_kv_len = 20, .page_size = 16};
  Limits limits{
      .max_seqs = 4, .max_tokens = 100, .max_kv_len = 64, .page_size = 16, .num_slots = 10};
  Status check() {
    batch.q_indptr = q_indptr.data();
    batch.kv_len = kv_len.data();
    batch.page_indptr = page_indptr.data();
    batch.page_slots = slots.data();
    batch.tree_mask = tree.empty() ? nullptr : tree.data();
    return check_batch(batch, limits);
  }
};

TEST(CheckBatch, AcceptsWhatIsWhole) {
  EXPECT_TRUE(Arrays().check().ok());
  Arrays empty;
  empty.batch.num_seqs = empty.batch.num_tokens = 0;
  EXPECT_TRUE(empty.check().ok());
}

// Paths that read rows: no pages, and key rows within those there are.
TEST(CheckBatch, RowsInPlaceOfPages) {
  Arrays a;
  std::vector<int32_t> kv_start = {5, 0};
  a.batch.path = Path::kChunked;
  a.batch.kv_start = kv_start.data();
  a.batch.page_size = 0;
  a.limits.page_size = 25;  // rows
  a.limits.num_slots = 1;
  EXPECT_TRUE(a.check().ok()) << a.check().to_string();
  a.page_indptr = {9, 1, 1};  // not looked at
  EXPECT_TRUE(a.check().ok());
  for (const auto& [start, says] :
       {std::pair{6, "key rows [6, 26)"}, std::pair{-1, "key rows [-1, 19)"},
        std::pair{std::numeric_limits<int32_t>::max(), "not within the 25"}}) {
    kv_start[0] = start;
    const Status status = a.check();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << start;
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  }
  a.batch.kv_start = nullptr;
  EXPECT_NE(a.check().message().find("kv_start"), std::string::npos) << a.check().message();
}

TEST(CheckBatch, NamesWhatIsWrong) {
  struct Case {
    const char* says;
    std::function<void(Arrays&)> spoil;
  };
  const Case cases[] = {
      {"2 sequences", [](Arrays& a) { a.limits.max_seqs = 1; }},
      {"3 tokens", [](Arrays& a) { a.limits.max_tokens = 2; }},
      {"page_size 8", [](Arrays& a) { a.batch.page_size = 8; }},
      {"begin with 0", [](Arrays& a) { a.q_indptr[0] = 1; }},
      {"q_indptr falls", [](Arrays& a) { a.q_indptr[2] = 1; }},
      {"page_indptr falls", [](Arrays& a) { a.page_indptr[2] = 0; }},
      {"ends at 3", [](Arrays& a) { a.batch.num_tokens = 4; }},
      {"kv_len -1", [](Arrays& a) { a.kv_len[1] = -1; }},
      {"kv_len 65", [](Arrays& a) { a.kv_len[0] = a.batch.max_kv_len = 65; }},
      {"kv_len 20", [](Arrays& a) { a.batch.max_kv_len = 19; }},
      {"cannot hold kv_len 20", [](Arrays& a) { a.page_indptr[1] = 1; }},
      {"max_q_len is 1", [](Arrays& a) { a.batch.max_q_len = 1; }},
      {"slot 10", [](Arrays& a) { a.slots[2] = 10; }},
      {"slot -1", [](Arrays& a) { a.slots[0] = -1; }},
      {"64 bits",
       [](Arrays& a) {
         a.q_indptr = {0, 65, 66};
         a.batch.num_tokens = 66;
         a.batch.max_q_len = 65;
         a.tree.resize(66);
       }},
      {"of no sequence", [](Arrays& a) { a.batch.num_seqs = 0; }},
  };
  for (const Case& c : cases) {
    Arrays arrays;
    c.spoil(arrays);
    const Status status = arrays.check();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << c.says;
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace attune::attention
