// GgufFile::parse: reads the header once, front to back. Every count and length is compared with
// the bytes that are left before it is used, so neither time nor memory can exceed what the file's
// own size pays for.
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "formats/gguf.h"
#include "formats/quote.h"

namespace attune::formats {
namespace {

static_assert(std::endian::native == std::endian::little);

using tensor::DType;

// ggml's type numbers, as in ggml.h; a null dtype marks those that exist but are not offered here.
struct TensorType {
  uint32_t number;
  const char* name;
  std::optional<DType> dtype;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32", DType::kF32},    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},  {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},  {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},  {9, "Q8_1", {}},
    {10, "Q2_K", {}},           {11, "Q3_K", {}},
    {12, "Q4_K", DType::kQ4_K}, {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K}, {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},        {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},        {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},         {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},          {23, "IQ4_XS", {}},
    {24, "I8", DType::kI8},     {25, "I16", DType::kI16},
    {26, "I32", DType::kI32},   {27, "I64", DType::kI64},
    {28, "F64", DType::kF64},   {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16}, {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},          {39, "MXFP4", {}},
};

std::string supported_tensor_types() {
  std::string names;
  for (const TensorType& type : kTensorTypes)
    if (type.dtype) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

// Bytes of a value of each type at least: for checking counts. Index: GgufType.
constexpr uint64_t kMinBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, rank, one dim, type, offset

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string name) : bytes_(bytes) {
    file_.name_ = std::move(name);
    file_.bytes_ = bytes;
  }

  Result<GgufFile> run() {
    uint64_t tensors = 0, entries = 0;
    ATTUNE_RETURN_IF_ERROR(read_header(tensors, entries));
    ATTUNE_RETURN_IF_ERROR(read_metadata(entries));
    ATTUNE_RETURN_IF_ERROR(read_alignment());
    ATTUNE_RETURN_IF_ERROR(read_tensors(tensors));
    ATTUNE_RETURN_IF_ERROR(place_tensors());
    return std::move(file_);
  }

 private:
  uint64_t left() const { return bytes_.size() - pos_; }

  std::string where(uint64_t offset, const std::string& field) const {
    return file_.name_ + ": GGUF " + field + " at byte " + std::to_string(offset) + ": ";
  }
  Status bad(uint64_t offset, const std::string& field, const std::string& what) const {
    return data_loss(where(offset, field) + what);
  }

  template <typename T>
  Status read(T& out, const char* field) {
    if (left() < sizeof(T))
      return bad(pos_, field,
                 "the file ends here (" + std::to_string(left()) + " of " +
                     std::to_string(sizeof(T)) + " bytes)");
    std::memcpy(&out, bytes_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return {};
  }

  Status read_string(std::string_view& out, const char* field) {
    const uint64_t at = pos_;
    uint64_t length = 0;
    ATTUNE_RETURN_IF_ERROR(read(length, field));
    if (length > left())
      return bad(at, field,
                 "length " + std::to_string(length) + " but only " + std::to_string(left()) +
                     " bytes are left");
    out = {reinterpret_cast<const char*>(bytes_.data() + pos_), size_t(length)};
    pos_ += length;
    return {};
  }

  // Refuses a count whose elements could not fit the rest of the file.
  Status check_count(uint64_t at, const char* field, uint64_t count, uint64_t min_bytes) const {
    if (count <= left() / min_bytes) return {};
    return bad(at, field,
               std::to_string(count) + " of at least " + std::to_string(min_bytes) +
                   " bytes each, but only " + std::to_string(left()) + " bytes are left");
  }

  Status read_header(uint64_t& tensors, uint64_t& entries) {
    uint32_t magic = 0;
    ATTUNE_RETURN_IF_ERROR(read(magic, "magic"));
    if (magic != 0x46554747)  // "GGUF"
      return bad(0, "magic", "not a GGUF file (it does not begin with the letters GGUF)");
    uint32_t& version = file_.version_;
    ATTUNE_RETURN_IF_ERROR(read(version, "version"));
    if (version != 0 && (version & 0xffff) == 0)
      return unsupported(where(4, "version") +
                         "the file is big-endian; convert it to little-endian");
    if (version != 2 && version != 3)
      return unsupported(where(4, "version") + "version " + std::to_string(version) +
                         "; 2 and 3 are supported");
    ATTUNE_RETURN_IF_ERROR(read(tensors, "tensor count"));
    ATTUNE_RETURN_IF_ERROR(read(entries, "metadata count"));
    ATTUNE_RETURN_IF_ERROR(check_count(8, "tensor count", tensors, kMinTensorBytes));
    return check_count(16, "metadata count", entries, kMinEntryBytes);
  }

  Status read_metadata(uint64_t entries) {
    file_.metadata_.reserve(entries);
    for (uint64_t i = 0; i < entries; ++i) {
      GgufEntry entry;
      entry.offset = pos_;
      ATTUNE_RETURN_IF_ERROR(read_string(entry.key, "metadata key"));
      if (entry.key.empty()) return bad(entry.offset, "metadata key", "empty");
      if (!file_.key_index_.emplace(entry.key, file_.metadata_.size()).second)
        return bad(entry.offset, "metadata key", quote(entry.key) + " appears twice");
      if (Status status = read_value(entry.value); !status.ok())
        return status.with_context("metadata " + quote(entry.key));
      file_.metadata_.push_back(std::move(entry));
    }
    return {};
  }

  Status read_type(GgufType& out) {
    const uint64_t at = pos_;
    uint32_t number = 0;
    ATTUNE_RETURN_IF_ERROR(read(number, "value type"));
    if (number >= std::size(kMinBytes))
      return bad(at, "value type", "unknown type number " + std::to_string(number));
    out = GgufType(number);
    return {};
  }

  Status read_value(GgufValue& out) {
    ATTUNE_RETURN_IF_ERROR(read_type(out.type));
    switch (out.type) {
      case GgufType::kU8:
        return read_number<uint8_t, uint64_t>(out);
      case GgufType::kI8:
        return read_number<int8_t, int64_t>(out);
      case GgufType::kU16:
        return read_number<uint16_t, uint64_t>(out);
      case GgufType::kI16:
        return read_number<int16_t, int64_t>(out);
      case GgufType::kU32:
        return read_number<uint32_t, uint64_t>(out);
      case GgufType::kI32:
        return read_number<int32_t, int64_t>(out);
      case GgufType::kU64:
        return read_number<uint64_t, uint64_t>(out);
      case GgufType::kI64:
        return read_number<int64_t, int64_t>(out);
      case GgufType::kF32:
        return read_number<float, double>(out);
      case GgufType::kF64:
        return read_number<double, double>(out);
      case GgufType::kBool:
        return read_number<uint8_t, bool>(out);
      case GgufType::kString: {
        std::string_view text;
        ATTUNE_RETURN_IF_ERROR(read_string(text, "string value"));
        out.value = text;
        return {};
      }
      case GgufType::kArray:
        return read_array(out);
    }
    return {};
  }

  template <typename Stored, typename Kept>
  Status read_number(GgufValue& out) {
    const uint64_t at = pos_;
    Stored number = 0;
    ATTUNE_RETURN_IF_ERROR(read(number, "value"));
    if constexpr (std::is_same_v<Kept, bool>)
      if (number > 1) return bad(at, "value", "a bool of " + std::to_string(number));
    out.value = Kept(number);
    return {};
  }

  Status read_array(GgufValue& out) {
    GgufArray array;
    const uint64_t type_at = pos_;
    ATTUNE_RETURN_IF_ERROR(read_type(array.elem));
    if (array.elem == GgufType::kArray)
      return unsupported(where(type_at, "array type") + "arrays of arrays are not supported");
    const uint64_t at = pos_;
    ATTUNE_RETURN_IF_ERROR(read(array.count, "array count"));
    const uint64_t elem_bytes = kMinBytes[uint32_t(array.elem)];
    ATTUNE_RETURN_IF_ERROR(check_count(at, "array count", array.count, elem_bytes));
    array.data = bytes_.data() + pos_;
    if (array.elem == GgufType::kString)
      ATTUNE_RETURN_IF_ERROR(read_strings(array));
    else
      pos_ += array.count * elem_bytes;
    out.value = std::move(array);
    return {};
  }

  Status read_strings(GgufArray& array) {
    array.strings.resize(array.count);
    for (std::string_view& s : array.strings)
      ATTUNE_RETURN_IF_ERROR(read_string(s, "string in an array"));
    return {};
  }

  Status read_alignment() {
    constexpr std::string_view kKey = "general.alignment";
    const auto it = file_.key_index_.find(kKey);
    if (it == file_.key_index_.end()) return {};
    const GgufEntry& entry = file_.metadata_[it->second];
    const auto* value = std::get_if<uint64_t>(&entry.value.value);
    if (value == nullptr || !std::has_single_bit(*value) || *value < 8 || *value > (1u << 30))
      return bad(entry.offset, std::string(kKey),
                 "expected an unsigned power of two from 8 to 2^30");
    file_.alignment_ = *value;
    return {};
  }

  Status read_tensors(uint64_t count) {
    // Again, now that the metadata is read: what is left may be far less.
    ATTUNE_RETURN_IF_ERROR(check_count(8, "tensor count", count, kMinTensorBytes));
    file_.tensors_.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = pos_;
      GgufTensor tensor;
      ATTUNE_RETURN_IF_ERROR(read_string(tensor.name, "tensor name"));
      if (tensor.name.empty()) return bad(at, "tensor name", "empty");
      if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second)
        return bad(at, "tensor name", quote(tensor.name) + " appears twice");
      if (Status status = read_tensor(tensor); !status.ok())
        return status.with_context("tensor " + quote(tensor.name));
      file_.tensors_.push_back(tensor);
    }
    return {};
  }

  Status read_tensor(GgufTensor& tensor) {
    uint64_t at = pos_;
    uint32_t rank = 0;
    ATTUNE_RETURN_IF_ERROR(read(rank, "dimension count"));
    if (rank < 1 || rank > tensor::Shape::kMaxDims)
      return bad(at, "dimension count", std::to_string(rank) + " (1 to 4 are valid)");
    tensor::Shape& shape = tensor.view.shape;
    shape.rank = int32_t(rank);
    int64_t elems = 1;
    for (int32_t i = shape.rank - 1; i >= 0; --i) {
      at = pos_;
      uint64_t dim = 0;
      ATTUNE_RETURN_IF_ERROR(read(dim, "dimension"));
      if (dim == 0 || dim > uint64_t(INT64_MAX) ||
          __builtin_mul_overflow(elems, int64_t(dim), &elems))
        return bad(at, "dimension", std::to_string(dim) + " (zero, or too many elements)");
      shape.dims[i] = int64_t(dim);
    }
    ATTUNE_RETURN_IF_ERROR(read_tensor_type(tensor));
    const tensor::DTypeInfo& info = tensor::dtype_info(tensor.view.dtype);
    const int64_t row = shape.dims[shape.rank - 1];
    if (row % info.block_elems != 0)
      return bad(at, "dimension",
                 "rows of " + std::to_string(row) + " elements do not divide into " + info.name +
                     " blocks of " + std::to_string(info.block_elems));
    int64_t bytes = 0;
    if (__builtin_mul_overflow(elems / info.block_elems, int64_t{info.block_bytes}, &bytes))
      return bad(at, "dimension", "the tensor's size in bytes overflows");
    at = pos_;
    ATTUNE_RETURN_IF_ERROR(read(tensor.offset, "tensor offset"));
    if (tensor.offset % file_.alignment_ != 0)
      return bad(at, "tensor offset",
                 std::to_string(tensor.offset) + " is no multiple of the alignment " +
                     std::to_string(file_.alignment_));
    return {};
  }

  Status read_tensor_type(GgufTensor& tensor) {
    const uint64_t at = pos_;
    uint32_t number = 0;
    ATTUNE_RETURN_IF_ERROR(read(number, "tensor type"));
    const auto* type = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                    [&](const TensorType& t) { return t.number == number; });
    if (type == std::end(kTensorTypes))
      return unsupported(where(at, "tensor type") + "number " + std::to_string(number) +
                         " is unknown to this version of attune; a newer one may know it. "
                         "Supported: " +
                         supported_tensor_types());
    if (!type->dtype)
      return unsupported(where(at, "tensor type") + type->name + " (number " +
                         std::to_string(number) +
                         ") is not supported. Supported: " + supported_tensor_types());
    tensor.view.dtype = *type->dtype;
    return {};
  }

  // Turns offsets within the data section into file offsets and pointers; checks bounds and
  // overlaps.
  Status place_tensors() {
    if (file_.tensors_.empty()) return {};
    const uint64_t start = (pos_ + file_.alignment_ - 1) & ~(file_.alignment_ - 1);
    const uint64_t section = start < bytes_.size() ? bytes_.size() - start : 0;
    std::vector<const GgufTensor*> by_offset;
    by_offset.reserve(file_.tensors_.size());
    for (GgufTensor& tensor : file_.tensors_) {
      const uint64_t size = uint64_t(tensor.view.bytes());
      if (tensor.offset > section || size > section - tensor.offset)
        return data_loss(file_.name_ + ": GGUF tensor " + quote(tensor.name) + " needs " +
                         std::to_string(size) + " bytes at offset " +
                         std::to_string(tensor.offset) + " of the data section at byte " +
                         std::to_string(start) + ", which has " + std::to_string(section) +
                         " bytes: the file is truncated or the offset wrong");
      tensor.offset += start;
      tensor.view.data = bytes_.data() + tensor.offset;
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const auto* a, const auto* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensor &a = *by_offset[i - 1], &b = *by_offset[i];
      if (a.offset + uint64_t(a.view.bytes()) > b.offset)
        return bad(b.offset, "tensor " + quote(b.name),
                   "overlaps tensor " + quote(a.name) + " at byte " + std::to_string(a.offset));
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  uint64_t pos_ = 0;
  GgufFile file_;
};

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  return GgufParser(bytes, std::move(name)).run();
}

}  // namespace attune::formats
