// Any bytes as a GGUF file: refused, or every table entry can be read and every tensor lies in the
// file.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "formats/gguf.h"
#include "formats/test_families.h"

using attune::formats::GgufEntry;
using attune::formats::GgufFile;
using attune::formats::GgufTensor;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);  // aligned as a map is
  const auto gguf = GgufFile::parse(std::as_bytes(std::span(bytes)), "fuzz.gguf");
  if (!gguf.ok()) return 0;
  unsigned sum = 0;
  for (const GgufEntry& entry : gguf->metadata()) {
    if (gguf->find(entry.key) == nullptr) std::abort();
    sum += gguf->get_int(entry.key).ok() + gguf->get_double(entry.key).ok() +
           gguf->get_bool(entry.key).ok();
    if (const auto text = gguf->get_string(entry.key); text.ok() && !text->empty())
      sum += unsigned(text->back());
    if (const auto list = gguf->get_strings(entry.key); list.ok())
      for (std::string_view s : *list) sum += s.empty() ? 0 : unsigned(s.back());
    sum += gguf->get_ints(entry.key).ok() + gguf->get_floats(entry.key).ok();
  }
  for (const GgufTensor& tensor : gguf->tensors()) {
    const auto* p = static_cast<const uint8_t*>(tensor.view.data);
    sum += p[0] + p[tensor.view.bytes() - 1];
  }
  if (const auto config = model_config_from_gguf(*gguf); config.ok())
    sum += inverse_frequencies(config->rope).size();
  const volatile unsigned sink = sum;  // so that the reads stay
  (void)sink;
  return 0;
}
