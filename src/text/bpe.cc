#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/log.h"
#include "text/loaders.h"
#include "text/unicode.h"

namespace attune::text {
namespace {

// Up to here looking through all pairs beats a heap.
constexpr size_t kShortPiece = 48;

bool may_result_from_merges(TokenType type) {
  return type == TokenType::kNormal || type == TokenType::kUserDefined ||
         type == TokenType::kUnused;
}

// Some character other than U+2581 stands before one.
bool has_inner_marker(std::string_view token) {
  size_t at = 0;
  while (token.substr(at, kMarker.size()) == kMarker) at += kMarker.size();
  return token.find(kMarker, at) != std::string_view::npos;
}

uint64_t pair_key(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}
uint64_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15;
  return key ^ (key >> 32);
}

}  // namespace

Bpe::Bpe(const VocabData& data, const StringArena& pieces)
    : by_piece_(pieces, pieces.size()),
      whole_(std::make_unique<std::atomic<uint8_t>[]>(pieces.size())),
      unk_(data.unk),
      byte_level_(data.byte_level),
      byte_fallback_(data.byte_fallback),
      fuse_unk_(data.fuse_unk),
      ignore_merges_(data.ignore_merges) {
  byte_ids_.fill(-1);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view token = pieces[i];
    if (token.empty()) continue;
    if (data.types[i] == TokenType::kByte) {
      const int byte = byte_of_fallback_token(token);
      if (byte_fallback_ && byte >= 0) byte_ids_[static_cast<size_t>(byte)] = id;
      continue;
    }
    if (!may_result_from_merges(data.types[i])) continue;
    by_piece_.insert(id);
    longest_ = std::max(longest_, token.size());
    if (byte_level_ && token.size() == 1) byte_ids_[static_cast<unsigned char>(token[0])] = id;
    if (has_inner_marker(token)) may_cut_before_markers_ = false;
  }
}

Result<std::unique_ptr<Bpe>> Bpe::build(const VocabData& data, const StringArena& spellings,
                                        const StringArena& pieces, const TokenIndex& by_spelling) {
  std::unique_ptr<Bpe> bpe(new Bpe(data, pieces));
  if (!data.merges.empty()) {
    ATTUNE_RETURN_IF_ERROR(bpe->add_listed_merges(data, by_spelling));
  } else if (!data.scores.empty()) {
    bpe->add_scored_merges(data, spellings);
  } else {
    return data_loss("the vocabulary has neither merges nor scores");
  }
  return bpe;
}

void Bpe::reserve_merges(size_t count) {
  merges_.assign(std::bit_ceil(count * 2 + 1), Merge{});
  merge_mask_ = merges_.size() - 1;
}

void Bpe::put_merge(TokenId left, TokenId right, uint32_t rank, TokenId result) {
  const uint64_t key = pair_key(left, right);
  size_t slot = mix(key) & merge_mask_;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != key)
    slot = (slot + 1) & merge_mask_;
  merges_[slot] = {key, rank, result};
}

const Bpe::Merge* Bpe::find_merge(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  for (size_t slot = mix(key) & merge_mask_;; slot = (slot + 1) & merge_mask_) {
    if (merges_[slot].pair == key) return &merges_[slot];
    if (merges_[slot].pair == kNoPair) return nullptr;
  }
}

Status Bpe::add_listed_merges(const VocabData& data, const TokenIndex& by_spelling) {
  reserve_merges(data.merges.size());
  std::string joined;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const auto& [left, right] = data.merges[i];
    joined.assign(left).append(right);
    const TokenId l = by_spelling.find(left), r = by_spelling.find(right),
                  whole = by_spelling.find(joined);
    if (l < 0 || r < 0 || whole < 0) {
      return data_loss(base::cat("merge ", i, " (\"", left, "\" and \"", right, "\"): \"",
                                 l < 0   ? left
                                 : r < 0 ? right
                                         : std::string_view(joined),
                                 "\" is not in the vocabulary"));
    }
    // Text never becomes a control token by merging.
    const TokenType type = data.types[static_cast<size_t>(whole)];
    if (type != TokenType::kControl && type != TokenType::kUnknown)
      put_merge(l, r, static_cast<uint32_t>(i), whole);
  }
  return {};
}

// SentencePiece merges the pair whose joint text has the highest score: each way to cut a token in
// two is a merge, ranked by the token's score; equal scores are equal ranks.
void Bpe::add_scored_merges(const VocabData& data, const StringArena& spellings) {
  std::vector<TokenId> order;
  for (size_t i = 0; i < spellings.size(); ++i) {
    if (!spellings[i].empty() && may_result_from_merges(data.types[i]))
      order.push_back(static_cast<TokenId>(i));
  }
  auto score = [&](TokenId id) { return data.scores[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return score(a) > score(b); });

  struct Found {
    TokenId left, right, whole;
    uint32_t rank;
  };
  std::vector<Found> found;
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) < score(order[i - 1])) ++rank;
    const std::string_view token = spellings[static_cast<size_t>(order[i])];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) continue;
      const TokenId left = by_piece_.find(token.substr(0, cut));
      const TokenId right = left < 0 ? -1 : by_piece_.find(token.substr(cut));
      if (right >= 0) found.push_back({left, right, order[i], rank});
    }
  }
  reserve_merges(found.size());
  for (const Found& f : found) put_merge(f.left, f.right, f.rank, f.whole);
}

void Bpe::encode(std::string_view piece, size_t most, Scratch& scratch,
                 std::vector<TokenId>& out) const {
  const TokenId id = piece.size() <= longest_ ? by_piece_.find(piece) : -1;
  if (id < 0) return merge_piece(piece, most, scratch, out);
  if (ignore_merges_) return out.push_back(id);
  std::atomic<uint8_t>& whole = whole_[static_cast<size_t>(id)];
  const uint8_t known = whole.load(std::memory_order_relaxed);
  if (known == 1) return out.push_back(id);
  const size_t before = out.size();
  merge_piece(piece, SIZE_MAX, scratch, out);
  if (known == 0) {
    const bool is_whole = out.size() == before + 1 && out.back() == id;
    whole.store(is_whole ? 1 : 2, std::memory_order_relaxed);
  }
}

void Bpe::push_unknown(std::vector<Symbol>& symbols) const {
  if (unk_ < 0) return;  // as `tokenizers` does: nothing stands for it
  if (fuse_unk_ && !symbols.empty() && symbols.back().id == unk_) return;
  symbols.push_back({unk_, -1, -1, kNoRank});
}

void Bpe::split_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (byte_level_) {
    for (unsigned char byte : piece) {
      if (byte_ids_[byte] >= 0) {
        symbols.push_back({byte_ids_[byte], -1, -1, kNoRank});
      } else {
        push_unknown(symbols);
      }
    }
    return;
  }
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, char_at(piece, at).size);
    at += character.size();
    const TokenId id = by_piece_.find(character);
    auto known_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (id >= 0) {
      symbols.push_back({id, -1, -1, kNoRank});
    } else if (byte_fallback_ && std::all_of(character.begin(), character.end(), known_byte)) {
      for (char c : character)
        symbols.push_back({byte_ids_[static_cast<unsigned char>(c)], -1, -1, kNoRank});
    } else {
      push_unknown(symbols);
    }
  }
}

void Bpe::merge_piece(std::string_view piece, size_t most, Scratch& scratch,
                      std::vector<TokenId>& out) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  split_symbols(piece, symbols);
  if (symbols.empty()) return;
  // A symbol is a byte at least, so that no token is made of more than longest_ of them.
  if (longest_ > 0 && symbols.size() / longest_ > most) {
    for (size_t i = 0; i <= most; ++i) out.push_back(symbols[i].id);
    return;
  }
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    const Merge* merge = find_merge(symbols[i].id, symbols[i + 1].id);
    symbols[i].rank = merge ? merge->rank : kNoRank;
  }
  if (symbols.size() <= kShortPiece) {
    merge_short(symbols);
    for (const Symbol& s : symbols) out.push_back(s.id);
  } else {
    merge_long(scratch);
    for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
      out.push_back(symbols[static_cast<size_t>(i)].id);
    }
  }
}

// The symbols stay in a row; links are not used.
void Bpe::merge_short(std::vector<Symbol>& symbols) const {
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].rank < symbols[best].rank) best = i;
    }
    if (symbols[best].rank == kNoRank) return;
    symbols[best].id = find_merge(symbols[best].id, symbols[best + 1].id)->result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    auto rerank = [&](size_t i) {
      const Merge* merge =
          i + 1 < symbols.size() ? find_merge(symbols[i].id, symbols[i + 1].id) : nullptr;
      symbols[i].rank = merge ? merge->rank : kNoRank;
    };
    rerank(best);
    if (best > 0) rerank(best - 1);
  }
}

// A heap of (rank, place); an entry counts only while its place still has that rank.
void Bpe::merge_long(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  heap.clear();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    Symbol& s = symbols[static_cast<size_t>(i)];
    s.prev = i - 1;
    s.next = i + 1 < count ? i + 1 : -1;
    if (s.rank != kNoRank) heap.push_back(uint64_t{s.rank} << 32 | static_cast<uint32_t>(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  auto rerank = [&](int32_t i) {
    Symbol& s = symbols[static_cast<size_t>(i)];
    const Merge* merge =
        s.next >= 0 ? find_merge(s.id, symbols[static_cast<size_t>(s.next)].id) : nullptr;
    s.rank = merge ? merge->rank : kNoRank;
    if (merge == nullptr) return;
    heap.push_back(uint64_t{s.rank} << 32 | static_cast<uint32_t>(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto at = static_cast<int32_t>(entry & 0xFFFFFFFFu);
    Symbol& s = symbols[static_cast<size_t>(at)];
    if (s.rank != entry >> 32) continue;  // merged away, or with another neighbour now
    Symbol& taken = symbols[static_cast<size_t>(s.next)];
    s.id = find_merge(s.id, taken.id)->result;
    s.next = taken.next;
    taken.rank = kNoRank;
    if (s.next >= 0) symbols[static_cast<size_t>(s.next)].prev = at;
    rerank(at);
    if (s.prev >= 0) rerank(s.prev);
  }
}

}  // namespace attune::text
