// A library for the loader's test to find.
extern "C" int attune_probe_answer() {
  return 42;
}
