// Pages as files in a folder, written by a few threads.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "base/throttle.h"
#include "kv/tier/file/file_ops.h"
#include "kv/tier/file/storage_folder.h"
#include "kv/tier/kv_tier.h"
#include "kv/tier/lru_ledger.h"
#include "kv/tier/make_tier.h"
#include "kv/tier/work_queue.h"

namespace attune::kv {

class FileTier final : public KvTier {
 public:
  // `ops` outlives the tier.
  static Result<std::unique_ptr<FileTier>> create(const TierConfig& config,
                                                  FileOps& ops = system_file_ops());
  ~FileTier() override;

  const TierInfo& info() const override { return info_; }
  TierStats stats() const override;
  void match(std::vector<PageKey> keys, std::function<void(int32_t)> done) override {
    queue_.match(std::move(keys), std::move(done));
  }
  void write(PageIdentity page, PageRuns from, Done done) override {
    queue_.write(std::move(page), from, std::move(done));
  }
  uint64_t read(PageIdentity page, PageRuns to, Done done) override {
    return queue_.read(std::move(page), to, std::move(done));
  }
  void cancel(uint64_t read) override { queue_.cancel(read); }
  Status clear() override;

  std::string page_path(const PageKey& key) const { return folder_->page_path(key); }
  // The folder has been looked through at least once since the start or the last rescan().
  void wait_for_scan();
  void rescan();

 private:
  struct Pending;  // a page written but not yet renamed and synced

  FileTier(const TierConfig& config, FileOps& ops, std::unique_ptr<StorageFolder> folder);
  void perform(std::span<TierOp> ops);
  void match_now(TierOp& op);
  TierResult read_now(const TierOp& op);
  TierResult read_open_file(const TierOp& op, int file);
  void write_now(std::span<TierOp> ops);
  bool write_record(const TierOp& op, int file, Pending& pending);
  TierResult write_temp(const TierOp& op, Pending& pending);
  TierResult publish(const TierOp& op, Pending& pending);
  void sync_folders(std::span<TierOp> ops, std::span<Pending> pending);
  void make_room();
  void remove(const PageKey& key);
  void forget_if_gone(const PageKey& key);
  void remove_damaged(const PageKey& key, int file);
  void scan_loop();
  void scan();
  TierResult failed(const char* what, const std::string& path);
  std::mutex& key_lock(const PageKey& key) { return key_locks_[key.bytes[31] % kKeyLocks]; }

  static constexpr size_t kKeyLocks = 64;
  const TierConfig config_;
  const PageKey fingerprint_;
  FileOps& ops_;
  const std::unique_ptr<StorageFolder> folder_;
  LruLedger ledger_;
  TierInfo info_;
  // What the ledger says of a key and its name in the folder change together.
  std::array<std::mutex, kKeyLocks> key_locks_;
  base::Throttle complaints_, looks_;
  std::atomic<int64_t> bytes_since_scan_{0};

  std::mutex scan_mutex_;
  std::condition_variable scan_changed_;
  uint64_t scans_wanted_ = 1, scans_done_ = 0;
  std::atomic<bool> stop_{false};
  std::thread scanner_;
  WorkQueue queue_;  // last: its threads use all the others
};

}  // namespace attune::kv
