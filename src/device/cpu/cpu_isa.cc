#include <cpuid.h>
#include <immintrin.h>

#include "device/device.h"

namespace attune::device {
namespace {

struct Regs {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Regs cpuid(uint32_t leaf, uint32_t sub) {
  Regs r;
  if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

__attribute__((target("xsave"))) uint64_t xcr0() {
  return _xgetbv(0);
}

bool bit(uint32_t reg, int i) {
  return (reg >> i) & 1;
}

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512_vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

// Feature bits: Intel SDM vol. 2, CPUID leaf 7; state bits: XCR0 5..7 for opmask and zmm.
CpuIsa detect_cpu_isa() {
  const bool osxsave = bit(cpuid(1, 0).c, 27);
  if (!osxsave || (xcr0() & 0xe6) != 0xe6) return CpuIsa::kAvx2;
  const Regs l7 = cpuid(7, 0);
  const bool f = bit(l7.b, 16), dq = bit(l7.b, 17), bw = bit(l7.b, 30), vl = bit(l7.b, 31);
  if (!(f && dq && bw && vl)) return CpuIsa::kAvx2;
  if (!bit(l7.c, 11)) return CpuIsa::kAvx512;
  return bit(cpuid(7, 1).a, 5) ? CpuIsa::kAvx512Bf16 : CpuIsa::kAvx512Vnni;
}

bool cpu_bf16_is_fast() {
  if (detect_cpu_isa() < CpuIsa::kAvx512Bf16) return false;
  const Regs vendor = cpuid(0, 0);
  return vendor.b == 0x68747541 && vendor.d == 0x69746e65 &&
         vendor.c == 0x444d4163;  // AuthenticAMD
}

}  // namespace attune::device
