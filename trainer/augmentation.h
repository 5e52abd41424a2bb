// Images as they were, moved by up to four pixels and mirrored or not: what is usual for CIFAR-10.
#ifndef SLIMGRAD_TRAINER_AUGMENTATION_H_
#define SLIMGRAD_TRAINER_AUGMENTATION_H_

#include <cstdint>
#include <span>

#include "trainer/data_set.h"

namespace slimgrad::trainer {

// A window of the image's own size out of the image with four black pixels around it, mirrored once
// in two. Which one is a function of (seed, epoch, index): of no order and of no threads. REQUIRES:
// both have shape.bytes() values and do not overlap.
void crop_and_flip(std::span<const std::uint8_t> image, const SampleShape& shape,
                   std::uint64_t seed, std::uint32_t epoch, std::uint64_t index,
                   std::span<std::uint8_t> out);

}  // namespace slimgrad::trainer

#endif  // SLIMGRAD_TRAINER_AUGMENTATION_H_
