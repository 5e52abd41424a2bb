#include <algorithm>
#include <atomic>
#include <cstring>

#include "arrays/saved/saved.h"
#include "base/check.h"
#include "kernels/coding/nonzeros.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

using exact::count_of;
using exact::kMaskBytes;
using exact::kOneSurvivor;
using exact::kTaskValues;
using exact::num_tasks;
static_assert(exact::kUnusedBytes == kernels::kNonzerosSlack);

template <typename Word>
std::size_t count_nonzeros(const Word* words, std::size_t num_words) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < num_words; ++i) count += words[i] != 0 ? 1 : 0;
  return count;
}

template <typename Word>
bool has_only(const Word* words, std::size_t num_words, Word survivor) {
  Word others = 0;  // Without an early end, so that it is done by vectors.
  for (std::size_t i = 0; i < num_words; ++i)
    others = static_cast<Word>(others | (words[i] == 0 ? 0 : words[i] ^ survivor));
  return others == 0;
}

template <typename Word>
std::optional<std::uint32_t> only_survivor_of(const Word* words, std::size_t num_words,
                                              const Parallel& parallel) {
  const Word* const found =
      std::find_if(words, words + num_words, [](Word word) { return word != 0; });
  const Word survivor = found == words + num_words ? Word{0} : *found;
  constexpr std::size_t kGlance = 1024;
  if (!has_only(words, std::min(num_words, kGlance), survivor)) return std::nullopt;
  std::atomic<bool> is_only = true;
  parallel(static_cast<std::int64_t>(num_tasks(num_words)), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    if (is_only && !has_only(words + task * kTaskValues, count_of(task, num_words), survivor))
      is_only = false;
  });
  return is_only ? std::optional<std::uint32_t>(survivor) : std::nullopt;
}

template <typename Word>
void spread_mask(const std::uint8_t* masks, Word survivor, Word* words, std::size_t num_words) {
  std::size_t i = 0;
  for (; i + 8 <= num_words; i += 8)
    for (std::size_t k = 0; k < 8; ++k)
      words[i + k] = masks[i / 8] & (1u << k) ? survivor : Word{0};
  for (; i < num_words; ++i) words[i] = masks[i / 8] >> i % 8 & 1 ? survivor : Word{0};
}

void restore_mask(std::span<const std::uint8_t> bytes, std::size_t width, const Parallel& parallel,
                  void* values, std::size_t num_values) {
  check(bytes.size() == exact::mask_bytes(num_values), "unpack_exact",
        "the bytes that pack_exact gave for a tensor of this size", bytes.size(), " bytes");
  std::uint64_t survivor;
  std::memcpy(&survivor, bytes.data() + 8, 8);
  parallel(static_cast<std::int64_t>(num_tasks(num_values)), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    const std::uint8_t* const masks = bytes.data() + exact::kOneSurvivorHead + task * kMaskBytes;
    const std::size_t first = task * kTaskValues, count = count_of(task, num_values);
    if (width == 2)
      spread_mask(masks, static_cast<std::uint16_t>(survivor),
                  static_cast<std::uint16_t*>(values) + first, count);
    else
      spread_mask(masks, static_cast<std::uint32_t>(survivor),
                  static_cast<std::uint32_t*>(values) + first, count);
  });
}

}  // namespace

std::optional<std::uint32_t> only_survivor(const void* values, std::size_t num_values,
                                           std::size_t width, const Parallel& parallel) {
  return width == 2
             ? only_survivor_of(static_cast<const std::uint16_t*>(values), num_values, parallel)
             : only_survivor_of(static_cast<const std::uint32_t*>(values), num_values, parallel);
}

void keep_mask(const void* values, std::size_t num_values, std::size_t width,
               std::uint32_t survivor, const Parallel& parallel, std::span<std::uint8_t> bytes) {
  kernels::obey_environment();
  const std::uint64_t head[] = {kOneSurvivor, survivor};
  std::memcpy(bytes.data(), head, sizeof head);
  parallel(static_cast<std::int64_t>(num_tasks(num_values)), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    thread_local std::vector<std::uint8_t> survivors(kTaskValues * 4 + kernels::kNonzerosSlack);
    kernels::split_nonzeros(static_cast<const std::uint8_t*>(values) + task * kTaskValues * width,
                            count_of(task, num_values), width,
                            bytes.data() + sizeof head + task * kMaskBytes, survivors.data());
  });
}

ExactLayout exact_layout(const void* values, std::size_t num_values, std::size_t width,
                         const Parallel& parallel) {
  const std::size_t tasks = num_tasks(num_values);
  ExactLayout layout{.begins = std::vector<std::uint64_t>(tasks + 1),
                     .masks = exact::head_bytes(num_values)};
  parallel(static_cast<std::int64_t>(tasks), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    const std::size_t first = task * kTaskValues, count = count_of(task, num_values);
    const std::size_t survivors =
        width == 2 ? count_nonzeros(static_cast<const std::uint16_t*>(values) + first, count)
                   : count_nonzeros(static_cast<const std::uint32_t*>(values) + first, count);
    layout.begins[task + 1] = exact::survivor_bytes(survivors, width);
  });
  layout.begins[0] = exact::first_begin(num_values);
  for (std::size_t task = 0; task < tasks; ++task) layout.begins[task + 1] += layout.begins[task];
  return layout;
}

void pack_exactly(const void* values, std::size_t num_values, std::size_t width,
                  const ExactLayout& layout, const Parallel& parallel,
                  std::span<std::uint8_t> bytes) {
  kernels::obey_environment();
  std::memcpy(bytes.data(), layout.begins.data(), layout.masks);
  parallel(static_cast<std::int64_t>(num_tasks(num_values)), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    kernels::split_nonzeros(static_cast<const std::uint8_t*>(values) + task * kTaskValues * width,
                            count_of(task, num_values), width,
                            bytes.data() + layout.masks + task * kMaskBytes,
                            bytes.data() + layout.begins[task]);
  });
}

void restore_exactly(std::span<const std::uint8_t> bytes, std::size_t width,
                     const Parallel& parallel, void* values, std::size_t num_values) {
  kernels::obey_environment();
  std::uint64_t head = 0;
  if (bytes.size() >= 16) std::memcpy(&head, bytes.data(), sizeof head);
  if (head == kOneSurvivor) return restore_mask(bytes, width, parallel, values, num_values);
  const std::size_t tasks = num_tasks(num_values);
  std::vector<std::uint64_t> begins(tasks + 1);
  const std::size_t masks = exact::head_bytes(num_values);
  const std::size_t least = exact::first_begin(num_values);
  check(bytes.size() >= least, "unpack_exact",
        "the bytes that pack_exact gave for a tensor of this size", bytes.size(), " bytes");
  std::memcpy(begins.data(), bytes.data(), masks);
  check(std::is_sorted(begins.begin(), begins.end()) && begins.front() == least &&
            begins.back() == bytes.size(),
        "unpack_exact", "the bytes that pack_exact gave for a tensor of this size", bytes.size(),
        " bytes with another layout");
  parallel(static_cast<std::int64_t>(tasks), [&](std::int64_t index) {
    const auto task = static_cast<std::size_t>(index);
    kernels::merge_nonzeros(bytes.data() + masks + task * kMaskBytes, bytes.data() + begins[task],
                            width, static_cast<std::uint8_t*>(values) + task * kTaskValues * width,
                            count_of(task, num_values));
  });
}

}  // namespace slimgrad
