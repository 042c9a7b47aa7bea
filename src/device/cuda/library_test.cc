#include "device/cuda/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace attune::device {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A root of its own, in which the probe library lies where a test puts it.
class LibraryLoader : public testing::Test {
 protected:
  LibraryLoader() {
    root_ =
        fs::temp_directory_path() / ("attune-library-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_);
    places_.root = root_.string();
  }
  ~LibraryLoader() override { fs::remove_all(root_); }

  fs::path folder(const std::string& below) {
    fs::create_directories(root_ / below);
    return root_ / below;
  }
  void install(const std::string& below) {
    fs::copy_file(ATTUNE_PROBE_LIBRARY, folder(below) / name_.file);
  }
  std::string found() {
    auto library = Library::open(name_, places_);
    if (!library.ok()) return library.status().message();
    auto answer = library->function<int()>("attune_probe_answer");
    EXPECT_TRUE(answer.ok()) << answer.status().to_string();
    EXPECT_EQ((*answer)(), 42);
    return fs::relative(library->path(), root_).string();
  }

  LibraryName name_{"Probe",
                    "libattune-probe-copy.so.13",
                    {"nvidia/cu13/lib", "nvidia/probe/lib"},
                    "nvidia-probe"};
  LibraryPlaces places_;
  fs::path root_;
};

TEST_F(LibraryLoader, FindsTheToolkit) {
  install("usr/local/cuda-13.0/lib64");
  EXPECT_EQ(found(), "usr/local/cuda-13.0/lib64/libattune-probe-copy.so.13");
  install("usr/local/cuda/targets/x86_64-linux/lib");
  EXPECT_EQ(found(), "usr/local/cuda/targets/x86_64-linux/lib/libattune-probe-copy.so.13");
  install("opt/toolkit/lib");
  places_.cuda_home = (root_ / "opt/toolkit").string();
  EXPECT_EQ(found(), "opt/toolkit/lib/libattune-probe-copy.so.13");
}

TEST_F(LibraryLoader, FindsPythonPackages) {
  install("usr/lib/python3/dist-packages/nvidia/probe/lib");
  EXPECT_EQ(found(), "usr/lib/python3/dist-packages/nvidia/probe/lib/libattune-probe-copy.so.13");
  install("home/.local/lib/python3.9/site-packages/nvidia/probe/lib");
  places_.home = (root_ / "home").string();
  EXPECT_THAT(found(), HasSubstr("home/.local"));
  install("venv/lib/python3.12/site-packages/nvidia/probe/lib");
  std::ofstream(folder("venv/bin") / "python3").put('\n');
  places_.path = (root_ / "nothing").string() + ":" + (root_ / "venv/bin").string();
  EXPECT_THAT(found(), HasSubstr("venv/lib/python3.12"));
  install("active/lib/python3.11/site-packages/nvidia/cu13/lib");
  places_.virtual_env = (root_ / "active").string();
  EXPECT_THAT(found(), HasSubstr("active/lib/python3.11/site-packages/nvidia/cu13"));
  install("target/nvidia/probe/lib");
  places_.python_path = (root_ / "target").string();
  EXPECT_THAT(found(), HasSubstr("target/nvidia"));
}

TEST_F(LibraryLoader, NamedFoldersComeFirst) {
  install("usr/local/cuda/lib64");
  install("mine");
  places_.named = (root_ / "absent").string() + ":" + (root_ / "mine").string();
  EXPECT_EQ(found(), "mine/libattune-probe-copy.so.13");
  EXPECT_THAT(library_folders(name_, places_),
              ElementsAre((root_ / "absent").string(), (root_ / "mine").string(), "",
                          (root_ / "usr/local/cuda/lib64").string()));
}

TEST_F(LibraryLoader, SaysWhereItLooked) {
  folder("usr/local/cuda/lib64");
  places_.named = "/absent/folder";
  const auto library = Library::open(name_, places_);
  EXPECT_EQ(library.status().code(), Code::kNotFound);
  EXPECT_EQ(library.status().message(),
            "Probe: libattune-probe-copy.so.13 is not in /absent/folder, the system's folders, " +
                (root_ / "usr/local/cuda/lib64").string() +
                ": install it (nvidia-probe on PyPI, or the CUDA toolkit's), or name its folder by "
                "--cuda-libraries");
}

TEST_F(LibraryLoader, ABrokenFileIsToldAndTheNextOneTaken) {
  std::ofstream(folder("broken") / name_.file) << "this is no library";
  places_.named = (root_ / "broken").string();
  const auto refused = Library::open(name_, places_);
  EXPECT_THAT(refused.status().message(), HasSubstr("broken (is there, but: "));
  install("usr/local/cuda/lib64");
  EXPECT_EQ(found(), "usr/local/cuda/lib64/libattune-probe-copy.so.13");
}

TEST_F(LibraryLoader, AFunctionThatIsNotThere) {
  install("mine");
  places_.named = (root_ / "mine").string();
  auto library = Library::open(name_, places_);
  ASSERT_TRUE(library.ok()) << library.status().to_string();
  const auto missing = library->function<int()>("attune_no_such_function");
  EXPECT_EQ(missing.status().code(), Code::kUnsupported);
  EXPECT_THAT(missing.status().message(), HasSubstr("has no attune_no_such_function"));
}

// The real ones, where this machine has them; both load without a GPU.
TEST(CudaLibraries, OpenFromWhereTheyAre) {
  const LibraryPlaces places = LibraryPlaces::of_process("");
  int opened = 0;
  if (auto blas = Library::open(cublaslt_name(), places); blas.ok()) {
    auto version = blas->function<size_t()>("cublasLtGetVersion");
    ASSERT_TRUE(version.ok()) << version.status().to_string();
    EXPECT_GE((*version)(), 130000u) << blas->path();
    ++opened;
  }
  if (auto dnn = Library::open(cudnn_name(), places); dnn.ok()) {
    auto version = dnn->function<size_t()>("cudnnGetVersion");
    ASSERT_TRUE(version.ok()) << version.status().to_string();
    EXPECT_GE((*version)(), 90000u) << dnn->path();
    ++opened;
  }
  if (opened == 0) GTEST_SKIP() << "neither cuBLASLt nor cuDNN is on this machine";
}

}  // namespace
}  // namespace attune::device
