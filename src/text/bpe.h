// Byte-pair merging of one piece of text. Sennrich et al. 2016 (arXiv:1508.07909): the best-ranked
// adjacent pair is merged, the leftmost of equals first, until none is left.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "attune/status.h"
#include "text/token_table.h"
#include "text/vocab_data.h"

namespace attune::text {

// Thread-safe once built.
class Bpe {
 public:
  // `spellings` and `bytes` are the vocabulary by id, as it is written and as the bytes it stands
  // for. Errors: data_loss (a merge names a token that does not exist, or has no merges or scores
  // at all).
  static Result<std::unique_ptr<Bpe>> build(const VocabData& data, const StringArena& spellings,
                                            const StringArena& pieces,
                                            const TokenIndex& by_spelling);

  // One symbol of a piece in the making.
  struct Symbol {
    TokenId id;
    int32_t prev, next;  // -1: none
    uint32_t rank;       // of the merge with the next symbol
  };
  // Room to work in; one per thread, reused from piece to piece.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
  };

  // Appends the ids of one piece; where they are more than `most`, maybe others in their place, as
  // many as that at least and one. Time is n log n in its length. REQUIRES: valid UTF-8.
  void encode(std::string_view piece, size_t most, Scratch& scratch,
              std::vector<TokenId>& out) const;

  // No merge joins another character with a U+2581 after it, so a text may be cut before each run
  // of them.
  bool may_cut_before_markers() const { return may_cut_before_markers_; }

 private:
  struct Merge {
    uint64_t pair = kNoPair;  // left << 32 | right
    uint32_t rank = 0;
    TokenId result = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  Bpe(const VocabData& data, const StringArena& pieces);
  Status add_listed_merges(const VocabData& data, const TokenIndex& by_spelling);
  void add_scored_merges(const VocabData& data, const StringArena& spellings);
  void reserve_merges(size_t count);
  void put_merge(TokenId left, TokenId right, uint32_t rank, TokenId result);
  const Merge* find_merge(TokenId left, TokenId right) const;

  void split_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  void push_unknown(std::vector<Symbol>& symbols) const;
  void merge_piece(std::string_view piece, size_t most, Scratch& scratch,
                   std::vector<TokenId>& out) const;
  void merge_short(std::vector<Symbol>& symbols) const;
  void merge_long(Scratch& scratch) const;

  TokenIndex by_piece_;  // the tokens that a piece may become
  std::vector<Merge> merges_;
  size_t merge_mask_ = 0;
  std::array<TokenId, 256> byte_ids_;
  // Whether the merges make a token out of its own bytes: 0 not known yet, 1 yes, 2 no. Most pieces
  // are such tokens, so this spares most merging; filled as text comes, any thread, same answer.
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
  size_t longest_ = 0;
  TokenId unk_ = -1;
  bool byte_level_ = false, byte_fallback_ = false, fuse_unk_ = false, ignore_merges_ = false;
  bool may_cut_before_markers_ = true;
};

}  // namespace attune::text
