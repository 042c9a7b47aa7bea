#include "bench/http_reply.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/log.h"
#include "base/quote.h"

namespace attune::bench {
namespace {

constexpr size_t kMaxLineBytes = 64 << 10;  // of a head, or of one chunk's size line

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Status malformed(std::string_view what, std::string_view line) {
  return data_loss(
      base::cat("the server's reply has ", what, ": ", base::json_quote(line.substr(0, 80))));
}

// All of `text`, or nothing.
bool parse_number(std::string_view text, int radix, uint64_t& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, radix);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Status HttpReplyReader::feed(std::string_view bytes, std::string& body) {
  while (!bytes.empty()) {
    switch (state_) {
      case State::kDone:
        return {};  // we send one request a connection: what follows answers nothing
      case State::kUntilClose:
        body += bytes;
        return {};
      case State::kSized:
      case State::kChunk: {
        const size_t n = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
        body += bytes.substr(0, n);
        bytes.remove_prefix(n);
        left_ -= n;
        if (left_ == 0) state_ = state_ == State::kSized ? State::kDone : State::kChunkEnd;
        break;
      }
      default: {
        const size_t newline = bytes.find('\n');
        const size_t n = std::min(newline, bytes.size());
        line_bytes_ += n;
        if (line_bytes_ > kMaxLineBytes) return malformed("an endless head", line_);
        line_ += bytes.substr(0, n);
        if (newline == std::string_view::npos) return {};
        bytes.remove_prefix(n + 1);
        if (line_.ends_with('\r')) line_.pop_back();
        const std::string line = std::move(line_);
        line_.clear();
        ATTUNE_RETURN_IF_ERROR(read_line(line));
      }
    }
  }
  return {};
}

Status HttpReplyReader::read_line(std::string_view line) {
  switch (state_) {
    case State::kStatusLine:
      return read_status_line(line);
    case State::kHeader:
      if (!line.empty()) return read_header(line);
      begin_body();
      return {};
    case State::kChunkSize:
      return read_chunk_size(line);
    case State::kChunkEnd:
      if (!line.empty()) return malformed("a chunk longer than its size", line);
      state_ = State::kChunkSize;
      return {};
    default:  // trailer fields are not used
      if (line.empty()) state_ = State::kDone;
      return {};
  }
}

Status HttpReplyReader::read_status_line(std::string_view line) {
  uint64_t status = 0;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ' ||
      !parse_number(line.substr(9, 3), 10, status)) {
    return malformed("no HTTP/1.1 status line", line);
  }
  status_ = static_cast<int>(status);
  state_ = State::kHeader;
  return {};
}

Status HttpReplyReader::read_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return malformed("a header without a colon", line);
  const std::string name = lower(line.substr(0, colon));
  const std::string value = lower(trim(line.substr(colon + 1)));
  if (name == "content-length") {
    if (!parse_number(value, 10, left_)) return malformed("a bad content-length", line);
    sized_ = true;
  } else if (name == "transfer-encoding") {
    if (value != "chunked") return malformed("an unknown transfer-encoding", line);
    chunked_ = true;
  } else if (name == "content-encoding" && value != "identity") {
    return malformed("a content-encoding that was not asked for", line);
  } else if (name == "content-type") {
    event_stream_ = value.starts_with("text/event-stream");
  }
  return {};
}

void HttpReplyReader::begin_body() {
  line_bytes_ = 0;
  if (status_ < 200) {  // 100 Continue and its like: the reply proper follows
    *this = HttpReplyReader();
  } else if (status_ == 204 || status_ == 304) {
    state_ = State::kDone;
  } else if (chunked_) {
    state_ = State::kChunkSize;
  } else if (sized_) {
    state_ = left_ ? State::kSized : State::kDone;
  } else {
    state_ = State::kUntilClose;
  }
}

Status HttpReplyReader::read_chunk_size(std::string_view line) {
  if (!parse_number(trim(line.substr(0, line.find(';'))), 16, left_))
    return malformed("a bad chunk size", line);
  line_bytes_ = 0;
  state_ = left_ ? State::kChunk : State::kTrailer;
  return {};
}

Status HttpReplyReader::end() {
  if (state_ == State::kUntilClose) state_ = State::kDone;
  if (state_ == State::kDone) return {};
  if (state_ == State::kStatusLine && line_.empty())
    return data_loss("the server closed the connection without a reply");
  return data_loss(base::cat("the server closed the connection inside its ",
                             has_head() ? "reply's body" : "reply's head"));
}

void SseReader::feed(std::string_view bytes, std::vector<std::string>& events) {
  for (size_t i = 0; i < bytes.size();) {
    if (after_cr_ && bytes[i] == '\n') {
      after_cr_ = false;
      ++i;
      continue;
    }
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n", i);
    line_ += bytes.substr(i, end - i);
    if (end == std::string_view::npos) return;
    after_cr_ = bytes[end] == '\r';
    end_line(events);
    i = end + 1;
  }
}

void SseReader::end_line(std::vector<std::string>& events) {
  std::string_view line = line_;
  if (line.empty()) {
    if (has_data_) events.push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
  } else if (line == "data" || line.starts_with("data:")) {
    line.remove_prefix(std::min<size_t>(5, line.size()));
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
  line_.clear();
}

}  // namespace attune::bench
