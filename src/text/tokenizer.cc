#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "formats/mapped_file.h"
#include "text/bpe.h"
#include "text/loaders.h"
#include "text/unicode.h"

namespace attune::text {

struct Tokenizer::Impl {
  explicit Impl(VocabData vocab) : data(std::move(vocab)) {}

  Status build();
  // Both may stop once there are more than `most` ids.
  void encode_text(std::string_view text, bool at_start, size_t most, Bpe::Scratch& scratch,
                   std::vector<TokenId>& out) const;
  void encode_pieces(std::string_view text, bool at_start, size_t most, Bpe::Scratch& scratch,
                     std::vector<TokenId>& out) const;

  VocabData data;  // its views are dropped by build()
  StringArena spellings, bytes;
  std::unique_ptr<TokenIndex> by_spelling;
  std::unique_ptr<Bpe> bpe;
  AddedTokenMatcher raw_added, normalized_added;
  std::vector<TokenId> eos_ids;
  size_t max_token_bytes = 0;
};

namespace {

// Of a text by normalizers: beyond what any model needs, little enough for any request.
constexpr double kMaxGrowth = 1000;

std::string token_bytes_of(const VocabData& data, size_t id) {
  const std::string_view spelling = data.tokens[id];
  if (data.types[id] == TokenType::kByte) {
    const int byte = byte_of_fallback_token(spelling);
    if (byte >= 0) return std::string(1, static_cast<char>(byte));
  }
  if (data.types[id] == TokenType::kNormal || data.types[id] == TokenType::kUnused) {
    if (data.byte_level) return bytes_of_spelling(spelling).value_or(std::string(spelling));
    std::string storage;
    return std::string(
        rewrite({{.kind = Rewrite::Kind::kReplace, .from = std::string(kMarker), .to = " "}},
                spelling, false, storage));
  }
  return std::string(spelling);
}

Status check_ids(const VocabData& data) {
  auto check = [&](TokenId id, const char* what) -> Status {
    if (id < static_cast<TokenId>(data.tokens.size())) return {};
    return data_loss(
        base::cat("the ", what, " token has id ", id, ", but there are only ", data.tokens.size()));
  };
  ATTUNE_RETURN_IF_ERROR(check(data.bos, "BOS"));
  ATTUNE_RETURN_IF_ERROR(check(data.eos, "EOS"));
  ATTUNE_RETURN_IF_ERROR(check(data.pad, "padding"));
  ATTUNE_RETURN_IF_ERROR(check(data.unk, "unknown"));
  for (TokenId id : data.prefix) ATTUNE_RETURN_IF_ERROR(check(id, "prefix"));
  for (TokenId id : data.suffix) ATTUNE_RETURN_IF_ERROR(check(id, "suffix"));
  for (const AddedToken& token : data.added) ATTUNE_RETURN_IF_ERROR(check(token.id, "added"));
  return {};
}

// `text` with its invalid parts replaced, and `literal` moved along.
std::string make_valid(std::string_view text, std::vector<ByteRange>& literal) {
  std::string out;
  std::vector<size_t*> marks;
  for (ByteRange& range : literal) {
    marks.push_back(&range.begin);
    marks.push_back(&range.end);
  }
  size_t mark = 0;
  for (size_t at = 0; at < text.size();) {
    for (; mark < marks.size() && *marks[mark] <= at; ++mark) *marks[mark] = out.size();
    const Utf8Step step = utf8_step(text, at);
    out += step.kind == Utf8Step::kCharacter ? text.substr(at, step.size) : kReplacement;
    at += step.size;
  }
  for (; mark < marks.size(); ++mark) *marks[mark] = out.size();
  return out;
}

std::string valid_utf8(std::string_view bytes) {
  std::string pending, out;
  append_lossy(pending, bytes, out);
  if (!pending.empty()) out += kReplacement;
  return out;
}

std::optional<TokenId> optional_id(TokenId id) {
  return id < 0 ? std::nullopt : std::optional<TokenId>(id);
}

}  // namespace

Status Tokenizer::Impl::build() {
  if (data.tokens.empty()) return data_loss("the vocabulary is empty");
  if (data.types.size() != data.tokens.size())
    return internal_error("types and tokens differ in number");
  ATTUNE_RETURN_IF_ERROR(check_ids(data));
  if (const double times = growth(data.normalizers) * growth(data.pre_rewrites);
      !(times <= kMaxGrowth)) {
    return data_loss(base::cat("its normalizers can make a text ", times,
                               " times as long; at most ", kMaxGrowth, " times is taken"));
  }
  size_t total = 0;
  for (std::string_view token : data.tokens) total += token.size();
  spellings.reserve(data.tokens.size(), total);
  bytes.reserve(data.tokens.size(), total);
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    spellings.add(data.tokens[i]);
    bytes.add(token_bytes_of(data, i));
    max_token_bytes = std::max(max_token_bytes, bytes[i].size());
  }
  by_spelling = std::make_unique<TokenIndex>(spellings, spellings.size());
  for (size_t i = 0; i < spellings.size(); ++i) {
    if (!spellings[i].empty()) by_spelling->insert(static_cast<TokenId>(i));
  }
  ATTUNE_ASSIGN_OR_RETURN(
      bpe, Bpe::build(data, spellings, data.byte_level ? bytes : spellings, *by_spelling));
  // Without a pre-tokenizer the whole text would be one piece.
  if (data.splits.empty() && !data.byte_level && bpe->may_cut_before_markers()) {
    data.splits.push_back({.kind = SplitStep::Kind::kMarkerRuns});
  }
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : data.added) {
    // Special tokens are always found in the raw text: a normaliser must not hide or make one.
    const bool in_raw = !token.normalized || token.special || data.normalizers.empty();
    (in_raw ? raw : normalized).push_back(std::move(token));
  }
  raw_added = AddedTokenMatcher(std::move(raw));
  normalized_added = AddedTokenMatcher(std::move(normalized));
  if (data.eos >= 0) eos_ids.push_back(data.eos);
  for (TokenId id : data.end_of_turn) {
    if (std::find(eos_ids.begin(), eos_ids.end(), id) == eos_ids.end()) eos_ids.push_back(id);
  }
  data.tokens = {};
  data.merges = {};
  data.scores = {};
  data.owned = {};
  data.added = {};
  return {};
}

// `text` holds no raw added tokens.
void Tokenizer::Impl::encode_text(std::string_view text, bool at_start, size_t most,
                                  Bpe::Scratch& scratch, std::vector<TokenId>& out) const {
  std::string storage;
  text = rewrite(data.normalizers, text, at_start, storage);
  size_t done = 0;
  if (!normalized_added.empty()) {
    while (const auto match = normalized_added.find(text, done, true, {})) {
      encode_pieces(text.substr(done, match->begin - done), at_start && done == 0, most, scratch,
                    out);
      if (out.size() > most) return;
      out.push_back(match->id);
      done = match->end;
    }
  }
  encode_pieces(text.substr(done), at_start && done == 0, most, scratch, out);
}

void Tokenizer::Impl::encode_pieces(std::string_view text, bool at_start, size_t most,
                                    Bpe::Scratch& scratch, std::vector<TokenId>& out) const {
  std::string storage;
  text = rewrite(data.pre_rewrites, text, at_start, storage);
  if (text.empty()) return;
  std::vector<std::string_view> pieces = {text};
  for (const SplitStep& step : data.splits) apply_split(step, pieces);
  for (std::string_view piece : pieces) {
    if (out.size() > most) return;
    bpe->encode(piece, most - out.size(), scratch, out);
  }
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return encode(text, options, {});
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options,
                                       std::span<const ByteRange> literal) const {
  std::string valid;
  std::vector<ByteRange> moved;
  if (!is_valid_utf8(text)) {
    moved.assign(literal.begin(), literal.end());
    valid = make_valid(text, moved);
    text = valid;
    literal = moved;
  }
  // One more, as a second BOS may go.
  const size_t most = options.max_tokens > 0 ? options.max_tokens + 1 : SIZE_MAX;
  std::vector<TokenId> out;
  out.reserve(std::min(text.size() / 3, most) + 8);
  if (options.add_special_tokens) out = impl_->data.prefix;
  const size_t prefix = out.size();
  Bpe::Scratch scratch;
  size_t done = 0;
  while (const auto match = impl_->raw_added.find(text, done, options.parse_special, literal)) {
    if (match->begin > done) {
      impl_->encode_text(text.substr(done, match->begin - done), done == 0, most, scratch, out);
    }
    if (out.size() > most) break;
    out.push_back(match->id);
    done = match->end;
  }
  if (done < text.size() && out.size() <= most) {
    impl_->encode_text(text.substr(done), done == 0, most, scratch, out);
  }
  // One BOS is enough, whoever wrote it.
  const TokenId bos = impl_->data.bos;
  if (prefix > 0 && bos >= 0 && out[prefix - 1] == bos && out.size() > prefix &&
      out[prefix] == bos) {
    out.erase(out.begin() + static_cast<ptrdiff_t>(prefix));
  }
  if (options.add_special_tokens) {
    out.insert(out.end(), impl_->data.suffix.begin(), impl_->data.suffix.end());
  }
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  std::string_view rest = bytes;
  if (impl_->data.strip_leading_space && rest.starts_with(' ')) rest.remove_prefix(1);
  return valid_utf8(rest);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return id >= 0 && id < vocab_size() ? impl_->bytes[static_cast<size_t>(id)] : std::string_view();
}
std::string Tokenizer::token_string(TokenId id) const {
  return valid_utf8(token_bytes(id));
}
std::string_view Tokenizer::token_text(TokenId id) const {
  return id >= 0 && id < vocab_size() ? impl_->spellings[static_cast<size_t>(id)]
                                      : std::string_view();
}
bool Tokenizer::is_special(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return false;
  const TokenType type = impl_->data.types[static_cast<size_t>(id)];
  return type == TokenType::kControl || type == TokenType::kUnknown;
}
std::optional<TokenId> Tokenizer::find_special(std::string_view text) const {
  const auto raw = impl_->raw_added.find_exact(text);
  return raw ? raw : impl_->normalized_added.find_exact(text);
}
std::optional<TokenId> Tokenizer::find_token(std::string_view text) const {
  return optional_id(impl_->by_spelling->find(text));
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->spellings.size());
}
std::optional<TokenId> Tokenizer::bos_id() const {
  return optional_id(impl_->data.bos);
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return optional_id(impl_->data.eos);
}
std::optional<TokenId> Tokenizer::pad_id() const {
  return optional_id(impl_->data.pad);
}
std::optional<TokenId> Tokenizer::unk_id() const {
  return optional_id(impl_->data.unk);
}
const std::vector<TokenId>& Tokenizer::eos_ids() const {
  return impl_->eos_ids;
}
bool Tokenizer::add_bos() const {
  const auto& prefix = impl_->data.prefix;
  return impl_->data.bos >= 0 &&
         std::find(prefix.begin(), prefix.end(), impl_->data.bos) != prefix.end();
}
bool Tokenizer::strips_leading_space() const {
  return impl_->data.strip_leading_space;
}
size_t Tokenizer::max_token_bytes() const {
  return impl_->max_token_bytes;
}

const std::string& Tokenizer::chat_template() const {
  return impl_->data.chat_template;
}
const std::string& Tokenizer::chat_template(std::string_view name) const {
  for (const auto& [key, text] : impl_->data.named_templates) {
    if (key == name) return text;
  }
  static const std::string none;
  return none;
}

std::string Tokenizer::describe() const {
  const auto& data = impl_->data;
  const auto special = std::count_if(data.types.begin(), data.types.end(), [](TokenType t) {
    return t == TokenType::kControl || t == TokenType::kUnknown;
  });
  return base::cat(data.byte_level ? "byte-level BPE" : "SentencePiece BPE", ", pre-tokenizer ",
                   data.pre_tokenizer_name, ", ", vocab_size(), " tokens, ", special, " special");
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(VocabData data) {
  const std::string source = data.source;
  auto impl = std::make_unique<Impl>(std::move(data));
  if (Status status = impl->build(); !status.ok()) {
    return source.empty() ? status : status.with_context(source);
  }
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(const formats::GgufFile& file) {
  auto data = vocab_from_gguf(file);
  if (!data.ok()) return data.status().with_context(file.path());
  return create(std::move(data).value());
}

namespace {

Result<std::shared_ptr<const Tokenizer>> from_hf_texts(std::string_view tokenizer_json,
                                                       std::string_view config_json,
                                                       std::string_view template_text,
                                                       const std::string& source) {
  auto tokenizer = formats::parse_json(tokenizer_json);
  if (!tokenizer.ok()) return tokenizer.status().with_context("tokenizer.json");
  formats::Json config;
  if (!config_json.empty()) {
    auto parsed = formats::parse_json(config_json);
    if (!parsed.ok()) return parsed.status().with_context("tokenizer_config.json");
    config = std::move(parsed).value();
  }
  ATTUNE_ASSIGN_OR_RETURN(VocabData data, vocab_from_hf(*tokenizer, config));
  data.source = source;
  if (!template_text.empty()) data.chat_template = template_text;
  return Tokenizer::create(std::move(data));
}

// The file's bytes; an absent one is empty.
Result<formats::MappedFile> open_optional(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return formats::MappedFile();
  return formats::MappedFile::open(path.string());
}
std::string_view as_text(const formats::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_hf(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  return from_hf_texts(tokenizer_json, tokenizer_config_json, "", "");
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  if (!folder && !path.ends_with(".json")) {  // a GGUF file may be called anything
    ATTUNE_ASSIGN_OR_RETURN(const auto file, formats::GgufFile::open(path));
    return from_gguf(file);
  }
  const auto json =
      folder ? std::filesystem::path(path) / "tokenizer.json" : std::filesystem::path(path);
  ATTUNE_ASSIGN_OR_RETURN(const auto tokenizer, formats::MappedFile::open(json.string()));
  ATTUNE_ASSIGN_OR_RETURN(const auto config,
                          open_optional(json.parent_path() / "tokenizer_config.json"));
  ATTUNE_ASSIGN_OR_RETURN(const auto jinja,
                          open_optional(json.parent_path() / "chat_template.jinja"));
  auto result = from_hf_texts(as_text(tokenizer), as_text(config), as_text(jinja), json.string());
  if (!result.ok()) return result.status().with_context(json.string());
  return result;
}

}  // namespace attune::text
