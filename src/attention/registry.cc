#include "attention/registry.h"

namespace attune::attention {

std::vector<BackendEntry> backend_table();  // generated: backend_table.cc

const std::vector<BackendEntry>& backends() {
  static const std::vector<BackendEntry> table = backend_table();
  return table;
}

const BackendEntry* find_backend(std::string_view name) {
  for (const BackendEntry& e : backends())
    if (e.capabilities.name == name) return &e;
  return nullptr;
}

std::string unavailable_on(const BackendEntry& entry, device::Device& device) {
  if (!entry.create) return entry.unavailable;
  const Support support = entry.create(device)->supports({});
  return support.ok() ? "" : "cannot run on this machine: " + support.reasons.front();
}

Toggle parse_toggle(std::string_view text) {
  return text == "on" ? Toggle::kOn : text == "off" ? Toggle::kOff : Toggle::kAuto;
}

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kPrefill:
      return "prefill";
    case Phase::kDecode:
      return "decode";
    case Phase::kVerify:
      return "verify";
    case Phase::kDraftExtend:
      return "draft_extend";
  }
  return "unknown";
}

const char* arch_name(Arch arch) {
  switch (arch) {
    case Arch::kCpu:
      return "cpu";
    case Arch::kSm80:
      return "sm80";
    case Arch::kSm89:
      return "sm89";
    case Arch::kSm90:
      return "sm90";
    case Arch::kSm100:
      return "sm100";
  }
  return "unknown";
}

const char* kind_name(AttentionKind kind) {
  return kind == AttentionKind::kMla ? "MLA" : "MHA";
}

const char* path_name(Path path) {
  switch (path) {
    case Path::kPaged:
      return "paged";
    case Path::kRagged:
      return "ragged";
    case Path::kOneShot:
      return "one_shot";
    case Path::kChunked:
      return "chunked";
    case Path::kAbsorbed:
      return "absorbed";
  }
  return "unknown";
}

}  // namespace attune::attention
