// One HTTP/1.1 reply, read from its bytes as they come, and the server-sent events in its body.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attune/status.h"

namespace attune::bench {

// Thread-compatible. After an error the reader is of no more use.
class HttpReplyReader {
 public:
  // Takes what came and appends what it holds of the body to `body`. data_loss: no HTTP reply, or
  // one in a form that is not read here; the message has the bytes at fault.
  Status feed(std::string_view bytes, std::string& body);
  // The peer has closed. data_loss when the reply is not whole.
  Status end();

  bool has_head() const { return state_ > State::kHeader; }
  bool done() const { return state_ == State::kDone; }
  int status() const { return status_; }  // 0 until its line came
  bool is_event_stream() const { return event_stream_; }

 private:
  enum class State {
    kStatusLine,
    kHeader,
    kSized,
    kUntilClose,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailer,
    kDone
  };

  Status read_line(std::string_view line);
  Status read_status_line(std::string_view line);
  Status read_header(std::string_view line);
  Status read_chunk_size(std::string_view line);
  void begin_body();

  State state_ = State::kStatusLine;
  std::string line_;       // the part of a line that came
  size_t line_bytes_ = 0;  // of all lines, against endless heads
  int status_ = 0;
  bool chunked_ = false, sized_ = false, event_stream_ = false;
  uint64_t left_ = 0;  // bytes of the body or chunk to come
};

// Lines end with \n, \r\n or \r; fields other than `data` are skipped.
class SseReader {
 public:
  // Appends the data of each event that `bytes` complete.
  void feed(std::string_view bytes, std::vector<std::string>& events);

 private:
  void end_line(std::vector<std::string>& events);

  std::string line_, data_;
  bool has_data_ = false, after_cr_ = false;
};

}  // namespace attune::bench
