#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace attune::text {
namespace {

bool is_word(char32_t code) {
  return code == '_' || (char_class(code) & (kLetter | kMark | kNumber)) != 0;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(char_before(text, begin).code)) ||
         (end < text.size() && is_word(char_at(text, end).code));
}

bool overlaps(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  auto it = std::lower_bound(ranges.begin(), ranges.end(), begin,
                             [](const ByteRange& r, size_t b) { return r.end <= b; });
  return it != ranges.end() && it->begin < end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) {
  std::stable_sort(tokens.begin(), tokens.end(), [](auto& a, auto& b) { return a.text < b.text; });
  for (AddedToken& token : tokens) {
    if (token.text.empty()) continue;
    if (!tokens_.empty() && tokens_.back().text == token.text) tokens_.pop_back();
    tokens_.push_back(std::move(token));
  }
  for (const AddedToken& token : tokens_) begins_[static_cast<unsigned char>(token.text[0])] = true;
  build_trie();
}

void AddedTokenMatcher::build_trie() {
  // tokens_[first, last) share their first `depth` bytes, which lead to `node`. Breadth first, so
  // that a long token needs no deep stack.
  struct Job {
    uint32_t node;
    size_t first, last, depth;
  };
  nodes_.emplace_back();
  std::vector<Job> jobs = {{0, 0, tokens_.size(), 0}};
  for (size_t j = 0; j < jobs.size(); ++j) {
    Job job = jobs[j];
    if (job.first < job.last && tokens_[job.first].text.size() == job.depth) {
      nodes_[job.node].token = static_cast<int32_t>(job.first++);
    }
    const auto children = static_cast<uint32_t>(nodes_.size());
    for (size_t i = job.first; i < job.last;) {
      const char byte = tokens_[i].text[job.depth];
      size_t end = i;
      while (end < job.last && tokens_[end].text[job.depth] == byte) ++end;
      jobs.push_back({static_cast<uint32_t>(nodes_.size()), i, end, job.depth + 1});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      i = end;
    }
    nodes_[job.node].children = children;
    nodes_[job.node].child_count = static_cast<uint32_t>(nodes_.size()) - children;
  }
}

const AddedTokenMatcher::Node* AddedTokenMatcher::child(const Node& node,
                                                        unsigned char byte) const {
  const Node* begin = nodes_.data() + node.children;
  const Node* end = begin + node.child_count;
  const Node* it =
      std::lower_bound(begin, end, byte, [](const Node& n, unsigned char b) { return n.byte < b; });
  return it != end && it->byte == byte ? it : nullptr;
}

std::optional<TokenId> AddedTokenMatcher::find_exact(std::string_view text) const {
  auto it = std::lower_bound(tokens_.begin(), tokens_.end(), text,
                             [](const AddedToken& t, std::string_view s) { return t.text < s; });
  if (it == tokens_.end() || it->text != text) return std::nullopt;
  return it->id;
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t at,
                                                bool parse_special,
                                                std::span<const ByteRange> literal) const {
  const AddedToken* best = nullptr;
  const Node* node = &nodes_[0];
  for (size_t i = at; i < text.size(); ++i) {
    node = child(*node, static_cast<unsigned char>(text[i]));
    if (node == nullptr) break;
    if (node->token < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(node->token)];
    if (token.special && (!parse_special || overlaps(literal, at, i + 1))) continue;
    if (token.single_word && touches_word(text, at, i + 1)) continue;
    best = &token;
  }
  return best;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(
    std::string_view text, size_t from, bool parse_special,
    std::span<const ByteRange> literal) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    const AddedToken* token = longest_at(text, at, parse_special, literal);
    if (token == nullptr) continue;
    Match match{at, at + token->text.size(), token->id};
    while (token->lstrip && match.begin > from) {
      const Char c = char_before(text, match.begin);
      if (!(char_class(c.code) & kSpace)) break;
      match.begin -= c.size;
    }
    while (token->rstrip && match.end < text.size()) {
      const Char c = char_at(text, match.end);
      if (!(char_class(c.code) & kSpace)) break;
      match.end += c.size;
    }
    return match;
  }
  return std::nullopt;
}

}  // namespace attune::text
