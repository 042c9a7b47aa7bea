#include "kv/tier/file/file_tier.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kv/tier/record.h"

namespace attune::kv {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int kMaxParts = 1024;       // IOV_MAX
constexpr int32_t kWriteBatch = 8;    // pages whose names are synced together
constexpr int64_t kRescanShare = 16;  // of the budget, written since the last look

// What a file takes on the medium; for one to come, whose header is not known yet, a block more.
int64_t charge(int64_t file_bytes) {
  return (file_bytes + kBlock - 1) / kBlock * kBlock;
}
int64_t charge_to_come(int64_t payload_bytes) {
  return charge(payload_bytes) + kBlock;
}

std::vector<iovec> parts_of(std::string& header, const PageRuns& runs) {
  std::vector<iovec> parts;
  parts.reserve(static_cast<size_t>(runs.count) + 1);
  parts.push_back({header.data(), header.size()});
  for (int32_t run = 0; run < runs.count; ++run)
    parts.push_back({runs.first + run * runs.stride, static_cast<size_t>(runs.bytes)});
  return parts;
}

// Calls move(parts, count, bytes so far) until all parts are done: bytes moved, fewer when it
// moved none, -1 and errno on failure.
template <typename Move>
int64_t move_all(std::vector<iovec>& parts, Move move) {
  int64_t total = 0;
  for (size_t at = 0; at < parts.size();) {
    const int count = static_cast<int>(std::min<size_t>(parts.size() - at, kMaxParts));
    ssize_t moved = move(&parts[at], count, total);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -1;
    if (moved == 0) break;
    total += moved;
    for (; at < parts.size() && moved >= static_cast<ssize_t>(parts[at].iov_len); ++at)
      moved -= static_cast<ssize_t>(parts[at].iov_len);
    if (moved == 0) continue;
    parts[at].iov_base = static_cast<char*>(parts[at].iov_base) + moved;
    parts[at].iov_len -= static_cast<size_t>(moved);
  }
  return total;
}

}  // namespace

struct FileTier::Pending {
  std::string temp;
  int64_t reserved = 0, bytes = 0;
  TierResult result = TierResult::kFailed;
};

Result<std::unique_ptr<FileTier>> FileTier::create(const TierConfig& config, FileOps& ops) {
  std::string dir = config.dir.empty() ? default_storage_dir() : config.dir;
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  ATTUNE_ASSIGN_OR_RETURN(std::unique_ptr<StorageFolder> folder, StorageFolder::open(dir, ops));
  return std::unique_ptr<FileTier>(new FileTier(config, ops, std::move(folder)));
}

FileTier::FileTier(const TierConfig& config, FileOps& ops, std::unique_ptr<StorageFolder> folder)
    : config_(config),
      fingerprint_(record_fingerprint(config.identity)),
      ops_(ops),
      folder_(std::move(folder)),
      ledger_(config.budget_bytes),
      info_{"file", folder_->root_salt(), true, true, config.budget_bytes},
      queue_({.threads = config.threads > 0 ? config.threads : 4,
              .max_queued = config.max_queued,
              .max_write_batch = kWriteBatch},
             [this](std::span<TierOp> batch) { perform(batch); }) {
  scanner_ = std::thread([this] { scan_loop(); });
}

FileTier::~FileTier() {
  {
    std::lock_guard lock(scan_mutex_);
    stop_ = true;
  }
  scan_changed_.notify_all();
  scanner_.join();
}

TierStats FileTier::stats() const {
  TierStats stats;
  stats.pages = ledger_.pages();
  stats.bytes = ledger_.bytes();
  stats.evicted = ledger_.evicted();
  queue_.add_stats(stats);
  return stats;
}

void FileTier::perform(std::span<TierOp> ops) {
  if (ops.front().kind == TierOp::Kind::kWrite) return write_now(ops);
  for (TierOp& op : ops) {
    if (op.kind == TierOp::Kind::kMatch) match_now(op);
    if (op.kind == TierOp::Kind::kRead) queue_.finish(op, read_now(op));
  }
}

void FileTier::match_now(TierOp& op) {
  int32_t found = 0;
  struct stat is;
  while (found < std::ssize(op.keys) &&
         ops_.stat(folder_->page_path(op.keys[static_cast<size_t>(found)]), &is) == 0)
    ++found;
  queue_.finish_match(op, found);
}

void FileTier::remove(const PageKey& key) {
  std::lock_guard lock(key_lock(key));
  const std::string path = folder_->page_path(key);
  ledger_.remove(key);
  if (ops_.unlink(path) != 0 && errno != ENOENT) failed("remove", path);
}

// What `file` is open on, unless a writer has put a new page in its place.
void FileTier::remove_damaged(const PageKey& key, int file) {
  std::lock_guard lock(key_lock(key));
  const std::string path = folder_->page_path(key);
  struct stat own, there;
  if (ops_.fstat(file, &own) != 0 || ops_.stat(path, &there) != 0) return;
  if (own.st_ino != there.st_ino || own.st_dev != there.st_dev) return;
  ledger_.remove(key);
  if (ops_.unlink(path) != 0 && errno != ENOENT) failed("remove", path);
}

// Another process may have evicted it; a writer of ours may also have put it there just now.
void FileTier::forget_if_gone(const PageKey& key) {
  std::lock_guard lock(key_lock(key));
  struct stat is;
  if (ops_.stat(folder_->page_path(key), &is) != 0 && errno == ENOENT) ledger_.remove(key);
}

TierResult FileTier::read_now(const TierOp& op) {
  const std::string path = folder_->page_path(op.page.key);
  const int file = ops_.open(path, O_RDONLY | O_NONBLOCK, 0);  // a pipe must not make it wait
  if (file < 0 && errno == ENOENT) {
    forget_if_gone(op.page.key);
    return TierResult::kMiss;
  }
  if (file < 0) return failed("open", path);
  const TierResult result = read_open_file(op, file);
  if (result == TierResult::kFailed) failed("read", path);
  if (result == TierResult::kCorrupt) remove_damaged(op.page.key, file);
  ops_.close(file);
  return result;
}

TierResult FileTier::read_open_file(const TierOp& op, int file) {
  std::string header(static_cast<size_t>(record_header_bytes(op.page)), '\0');
  const int64_t bytes = std::ssize(header) + op.runs.total();
  struct stat is;
  if (ops_.fstat(file, &is) != 0) return TierResult::kFailed;
  if (!S_ISREG(is.st_mode) || is.st_size != bytes) return TierResult::kCorrupt;
  std::vector<iovec> parts = parts_of(header, op.runs);
  const int64_t got = move_all(parts, [&](const iovec* at, int count, int64_t offset) {
    return ops_.preadv(file, at, count, offset);
  });
  if (got < 0) return TierResult::kFailed;
  if (got != bytes || !record_is_right(header, fingerprint_, op.page, op.runs))
    return TierResult::kCorrupt;
  ops_.set_used_now(file);  // a folder that only lets itself be read serves too
  std::lock_guard lock(key_lock(op.page.key));
  if (ops_.fstat(file, &is) == 0 && is.st_nlink > 0) ledger_.put(op.page.key, charge(bytes));
  return TierResult::kOk;
}

void FileTier::write_now(std::span<TierOp> ops) {
  std::vector<Pending> pending(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    pending[i].result = write_temp(ops[i], pending[i]);
    if (pending[i].result == TierResult::kOk) pending[i].result = publish(ops[i], pending[i]);
  }
  sync_folders(ops, pending);
  for (size_t i = 0; i < ops.size(); ++i) queue_.finish(ops[i], pending[i].result);
}

// Bytes and time of use are on the medium; errno on failure.
bool FileTier::write_record(const TierOp& op, int file, Pending& pending) {
  std::string header = make_record_header(fingerprint_, op.page, op.runs);
  pending.bytes = std::ssize(header) + op.runs.total();
  std::vector<iovec> parts = parts_of(header, op.runs);
  const int64_t put = move_all(
      parts, [&](const iovec* at, int count, int64_t) { return ops_.writev(file, at, count); });
  if (put < 0) return false;
  if (put != pending.bytes) {
    errno = EIO;
    return false;
  }
  ops_.set_used_now(file);  // the kernel's own time is too coarse to order pages by
  return ops_.fsync(file) == 0;
}

// The whole record is on the medium under a name that no reader looks for.
TierResult FileTier::write_temp(const TierOp& op, Pending& pending) {
  pending.reserved = charge_to_come(op.runs.total());
  if (!ledger_.reserve(pending.reserved)) return TierResult::kFull;
  make_room();
  pending.temp = folder_->temp_path();
  const int file = ops_.open(pending.temp, O_CREAT | O_EXCL | O_WRONLY, 0644);
  TierResult result = TierResult::kOk;
  if (file < 0) {
    result = failed("make", pending.temp);
  } else {
    if (!write_record(op, file, pending)) result = failed("write", pending.temp);
    if (ops_.close(file) != 0 && result == TierResult::kOk) result = failed("write", pending.temp);
    if (result != TierResult::kOk) ops_.unlink(pending.temp);
  }
  if (result != TierResult::kOk) ledger_.unreserve(pending.reserved);
  return result;
}

TierResult FileTier::publish(const TierOp& op, Pending& pending) {
  const std::string path = folder_->page_path(op.page.key);
  std::lock_guard lock(key_lock(op.page.key));
  if (ops_.rename(pending.temp, path) != 0) {
    const TierResult result = failed("rename to", path);
    ops_.unlink(pending.temp);
    ledger_.unreserve(pending.reserved);
    return result;
  }
  ledger_.put(op.page.key, charge(pending.bytes), pending.reserved);
  return TierResult::kOk;
}

// Once for each folder; a page whose name may not be on the medium is not there.
void FileTier::sync_folders(std::span<TierOp> ops, std::span<Pending> pending) {
  std::set<std::string> good, bad;
  int64_t written = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (pending[i].result != TierResult::kOk) continue;
    written += pending[i].bytes;
    const std::string folder = folder_->page_folder(ops[i].page.key);
    if (!good.contains(folder) && !bad.contains(folder)) {
      const bool synced = folder_->sync(folder);
      if (!synced) failed("sync", folder);
      (synced ? good : bad).insert(folder);
    }
    if (good.contains(folder)) continue;
    pending[i].result = TierResult::kFailed;
    remove(ops[i].page.key);
  }
  // Other processes write into the folder too: their pages count once they are seen.
  if (config_.budget_bytes > 0 &&
      (bytes_since_scan_ += written) > config_.budget_bytes / kRescanShare)
    rescan();
}

void FileTier::make_room() {
  while (const std::optional<LruLedger::Victim> victim = ledger_.victim()) {
    std::lock_guard lock(key_lock(victim->key));
    if (!ledger_.evict(*victim)) continue;
    const std::string path = folder_->page_path(victim->key);
    if (ops_.unlink(path) != 0 && errno != ENOENT) failed("remove", path);
  }
}

Status FileTier::clear() {
  return queue_.without_writes([this] {
    Status status;
    const Status listed = folder_->for_each_page(
        [] { return false; },
        [&](const StorageFolder::Page& page) {
          std::lock_guard lock(key_lock(page.key));
          const std::string path = folder_->page_path(page.key);
          ledger_.remove(page.key);
          if (ops_.unlink(path) != 0 && errno != ENOENT && status.ok())
            status = io_error(base::cat("cannot remove ", path, ": ", std::strerror(errno)));
        });
    if (listed.ok() && status.ok()) ledger_.clear();
    return listed.ok() ? status : listed;
  });
}

void FileTier::rescan() {
  {
    std::lock_guard lock(scan_mutex_);
    // One under way may have missed something.
    scans_wanted_ = scans_wanted_ == scans_done_ ? scans_done_ + 1 : scans_done_ + 2;
    bytes_since_scan_ = 0;
  }
  scan_changed_.notify_all();
}

void FileTier::wait_for_scan() {
  std::unique_lock lock(scan_mutex_);
  scan_changed_.wait(lock, [this, wanted = scans_wanted_] { return scans_done_ >= wanted; });
}

void FileTier::scan_loop() {
  std::unique_lock lock(scan_mutex_);
  for (;;) {
    scan_changed_.wait(lock, [this] { return stop_ || scans_done_ < scans_wanted_; });
    if (stop_) return;
    lock.unlock();
    scan();
    lock.lock();
    ++scans_done_;
    scan_changed_.notify_all();
  }
}

void FileTier::scan() {
  ledger_.begin_scan();
  std::vector<StorageFolder::Page> pages;
  const Status status =
      folder_->for_each_page([this] { return stop_.load(); },
                             [&](const StorageFolder::Page& page) { pages.push_back(page); });
  if (!status.ok()) {
    if (status.code() != Code::kCancelled) base::log_warning(status.message());
    return ledger_.abandon_scan();
  }
  std::sort(pages.begin(), pages.end(),
            [](const auto& a, const auto& b) { return a.used_ns < b.used_ns; });
  std::vector<LruLedger::Seen> seen;
  seen.reserve(pages.size());
  for (const StorageFolder::Page& page : pages) seen.push_back({page.key, charge(page.bytes)});
  ledger_.end_scan(seen);
  make_room();
  folder_->remove_stale_temps();
}

// Says what errno means, and looks what is left of a folder that has lost something, each at most
// once in ten seconds.
TierResult FileTier::failed(const char* what, const std::string& path) {
  const int error = errno;
  if ((error == ENOENT || error == ENOTDIR) && looks_.may()) rescan();
  if (complaints_.may())
    base::log_warning("storage folder: cannot ", what, " ", path, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? TierResult::kFull : TierResult::kFailed;
}

}  // namespace attune::kv
