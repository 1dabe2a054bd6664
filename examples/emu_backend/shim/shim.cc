#include "shim/shim.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string Trimmed(const std::string& text) {
  const char* blank = " \t\n\r";
  const size_t begin = text.find_first_not_of(blank);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

bool IsNumber(const std::string& text) {
  const size_t digits = text.size() > 1 && text[0] == '-' ? 1 : 0;
  return !text.empty() && text.size() < 9 &&
         std::all_of(text.begin() + digits, text.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

extern "C" {

int emu_shim_visible(const char* text, int present, int* ids, size_t capacity) {
  std::vector<int> seen;
  if (text == nullptr) {
    for (int card = 0; card < present; ++card) seen.push_back(card);
  } else if (const std::string all = Trimmed(text); !all.empty()) {
    bool hidden = false;
    std::stringstream parts(all + ",");
    for (std::string part; std::getline(parts, part, ',');) {
      part = Trimmed(part);
      if (!IsNumber(part)) return -1;
      const int card = std::stoi(part);
      if (std::find(seen.begin(), seen.end(), card) != seen.end()) return -1;
      hidden = hidden || card < 0 || card >= present;
      if (!hidden) seen.push_back(card);
    }
  }
  if (seen.size() > capacity) return -1;
  std::copy(seen.begin(), seen.end(), ids);
  return static_cast<int>(seen.size());
}

void emu_shim_axpy(float a, const float* x, float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) y[i] += a * x[i];
}

int emu_shim_all_reduce(float* const* buffers, int cards, size_t count) {
  if (cards < 2) return -1;
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int card = 0; card < cards; ++card) sum += buffers[card][i];
    for (int card = 0; card < cards; ++card) buffers[card][i] = sum;
  }
  return 0;
}

}  // extern "C"
