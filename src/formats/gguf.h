// GGUF (version 2 and 3, little endian): a typed metadata table and a tensor table over a mapped
// file. Format: ggml's docs/gguf.md. Strings, string arrays and tensors point into the map.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "attune/status.h"
#include "formats/mapped_file.h"
#include "tensor/tensor_view.h"

namespace attune::formats {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
const char* gguf_type_name(GgufType type);  // "u8", "string", ...

// Elements are unaligned, little endian; `strings` is filled only for elem == kString.
struct GgufArray {
  GgufType elem = GgufType::kU8;
  uint64_t count = 0;
  const std::byte* data = nullptr;
  std::vector<std::string_view> strings;
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  // Unsigned types are uint64_t, signed ones int64_t, both float types double.
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
  uint64_t offset = 0;  // of the key in the file, for messages
};

struct GgufTensor {
  std::string_view name;
  tensor::TensorView view;  // outermost dimension first ([out, in]): ggml's ne reversed
  uint64_t offset = 0;      // of the data in the file
};

// Thread-compatible; const methods are thread-safe. Movable; pointers into the map stay valid.
class GgufFile {
 public:
  // Errors: data_loss with the byte offset and the field (truncated, hostile, duplicate or
  // overlapping entries), unsupported (version, big endian, tensor type, nested arrays), and
  // MappedFile's. Memory is at most a small multiple of the header's bytes, whatever its counts
  // claim.
  static Result<GgufFile> open(const std::string& path);
  // The same over borrowed bytes, which must outlive the result; `name` is for messages.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  const std::string& path() const { return name_; }
  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t file_bytes() const { return bytes_.size(); }
  const MappedFile& file() const { return file_; }

  const std::vector<GgufEntry>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufValue* find(std::string_view key) const;           // null: absent
  const GgufTensor* find_tensor(std::string_view name) const;  // null: absent

  // Typed access. Errors, with file and key: not_found (absent), data_loss (another type, or out of
  // range).
  Result<int64_t> get_int(std::string_view key) const;    // any integer type
  Result<double> get_double(std::string_view key) const;  // any number
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::span<const std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int32_t>> get_ints(
      std::string_view key) const;  // array of any integer or bool type
  Result<std::vector<float>> get_floats(std::string_view key) const;  // array of f32 or f64
  // As above, with `fallback` when the key is absent.
  Result<int64_t> get_int_or(std::string_view key, int64_t fallback) const;
  Result<double> get_double_or(std::string_view key, double fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string_view> get_string_or(std::string_view key, std::string_view fallback) const;

 private:
  friend class GgufParser;
  Status absent(std::string_view key) const;
  Status mistyped(std::string_view key, const char* wanted) const;

  std::string name_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::vector<GgufEntry> metadata_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> key_index_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace attune::formats
