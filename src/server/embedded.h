// What the build puts into the binary.
#pragma once

namespace attune::server {
extern const char kVersion[];
extern const char kChatPage[];  // chat_page.html
}  // namespace attune::server
