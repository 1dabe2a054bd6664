#include <cstdio>
#include <string>

#include "shim/shim.h"

namespace {

int failures = 0;

void Expect(const char* text, int present, const std::string& expected) {
  int ids[8];
  const int count = emu_shim_visible(text, present, ids, 8);
  std::string found = count < 0 ? "error" : "";
  for (int i = 0; i < count; ++i) found += std::to_string(ids[i]) + " ";
  if (found != expected) {
    std::printf("EMU_VISIBLE_CARDS=%s of %d cards: found [%s], expected [%s]\n", text ? text : "(unset)", present,
                found.c_str(), expected.c_str());
    ++failures;
  }
}

}  // namespace

int main() {
  Expect(nullptr, 2, "0 1 ");
  Expect("", 2, "");
  Expect(" 1 , 0 ", 2, "1 0 ");
  Expect("1,5,0", 2, "1 ");
  Expect("0,0", 2, "error");
  Expect("first", 2, "error");
  return failures == 0 ? 0 : 1;
}
