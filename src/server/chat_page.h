// chat_page.html, as the build put it into the binary.
#pragma once

namespace attune::server {
extern const char kChatPage[];
}  // namespace attune::server
