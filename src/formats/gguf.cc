#include "formats/gguf.h"

#include <cstring>
#include <limits>

namespace attune::formats {
namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};
// Bytes of a scalar; of a string, its length field alone; arrays of arrays do not occur.
constexpr uint64_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
constexpr uint32_t kTypeCount = std::size(kTypeNames);

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// A scalar that is no string. REQUIRES: kTypeBytes[type] readable bytes.
GgufValue load_scalar(GgufType type, const std::byte* p) {
  const auto u = [&](uint64_t v) { return GgufValue{type, v}; };
  const auto i = [&](int64_t v) { return GgufValue{type, v}; };
  switch (type) {
    case GgufType::kU8:
      return u(load<uint8_t>(p));
    case GgufType::kU16:
      return u(load<uint16_t>(p));
    case GgufType::kU32:
      return u(load<uint32_t>(p));
    case GgufType::kU64:
      return u(load<uint64_t>(p));
    case GgufType::kI8:
      return i(load<int8_t>(p));
    case GgufType::kI16:
      return i(load<int16_t>(p));
    case GgufType::kI32:
      return i(load<int32_t>(p));
    case GgufType::kI64:
      return i(load<int64_t>(p));
    case GgufType::kF32:
      return {type, double(load<float>(p))};
    case GgufType::kF64:
      return {type, load<double>(p)};
    default:
      return {type, load<uint8_t>(p) != 0};
  }
}

// An integer of any type, or nothing when it is no integer or outside int64.
std::optional<int64_t> as_int(const GgufValue& value) {
  if (const auto* i = std::get_if<int64_t>(&value.value)) return *i;
  if (const auto* u = std::get_if<uint64_t>(&value.value))
    if (*u <= uint64_t(std::numeric_limits<int64_t>::max())) return int64_t(*u);
  return std::nullopt;
}

std::string describe(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value.value))
    return std::string("an array of ") + gguf_type_name(array->elem);
  return std::string("a ") + gguf_type_name(value.type);
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  return uint32_t(type) < kTypeCount ? kTypeNames[uint32_t(type)] : "unknown";
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  ATTUNE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  ATTUNE_ASSIGN_OR_RETURN(GgufFile gguf, parse(file.bytes(), path));
  gguf.file_ = std::move(file);
  return gguf;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = key_index_.find(key);
  return it == key_index_.end() ? nullptr : &metadata_[it->second].value;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

Status GgufFile::absent(std::string_view key) const {
  return not_found(name_ + ": the GGUF metadata has no " + std::string(key));
}

Status GgufFile::mistyped(std::string_view key, const char* wanted) const {
  return data_loss(name_ + ": GGUF metadata " + std::string(key) + " is " + describe(*find(key)) +
                   ", expected " + wanted);
}

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto i = as_int(*value)) return *i;
  return mistyped(key, "an integer below 2^63");
}

Result<double> GgufFile::get_double(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* d = std::get_if<double>(&value->value)) return *d;
  if (const auto i = as_int(*value)) return double(*i);
  return mistyped(key, "a number");
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* b = std::get_if<bool>(&value->value)) return *b;
  return mistyped(key, "a bool");
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  if (const auto* s = std::get_if<std::string_view>(&value->value)) return *s;
  return mistyped(key, "a string");
}

Result<std::span<const std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr || array->elem != GgufType::kString)
    return mistyped(key, "an array of strings");
  return std::span<const std::string_view>(array->strings);
}

Result<std::vector<int32_t>> GgufFile::get_ints(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr || array->elem == GgufType::kString)
    return mistyped(key, "an array of integers");
  const uint64_t step = kTypeBytes[uint32_t(array->elem)];
  std::vector<int32_t> out(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue item = load_scalar(array->elem, array->data + i * step);
    const auto* flag = std::get_if<bool>(&item.value);
    const auto number = flag != nullptr ? std::optional<int64_t>(*flag) : as_int(item);
    if (!number || *number != int32_t(*number))
      return mistyped(key, "an array of integers that fit 32 bits");
    out[i] = int32_t(*number);
  }
  return out;
}

Result<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return absent(key);
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr || (array->elem != GgufType::kF32 && array->elem != GgufType::kF64))
    return mistyped(key, "an array of floats");
  std::vector<float> out(array->count);
  for (uint64_t i = 0; i < array->count; ++i)
    out[i] = array->elem == GgufType::kF32 ? load<float>(array->data + i * 4)
                                           : float(load<double>(array->data + i * 8));
  return out;
}

Result<int64_t> GgufFile::get_int_or(std::string_view key, int64_t fallback) const {
  return find(key) == nullptr ? Result<int64_t>(fallback) : get_int(key);
}
Result<double> GgufFile::get_double_or(std::string_view key, double fallback) const {
  return find(key) == nullptr ? Result<double>(fallback) : get_double(key);
}
Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  return find(key) == nullptr ? Result<bool>(fallback) : get_bool(key);
}
Result<std::string_view> GgufFile::get_string_or(std::string_view key,
                                                 std::string_view fallback) const {
  return find(key) == nullptr ? Result<std::string_view>(fallback) : get_string(key);
}

}  // namespace attune::formats
