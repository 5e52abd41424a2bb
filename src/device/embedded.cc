#include "device/embedded.h"

// The bytes of a file, between quotes, as an object with an end of text behind it.
#define SLIMGRAD_EMBED(name, file)                                                    \
  asm(".pushsection .rodata\n.balign 16\n.globl " #name "\n.hidden " #name "\n" #name \
      ":\n"                                                                           \
      ".incbin \"" file "\"\n.byte 0\n.popsection\n");                                \
  extern "C" const unsigned char name[];

#ifdef SLIMGRAD_FATBIN
SLIMGRAD_EMBED(slimgrad_device_fatbin, SLIMGRAD_FATBIN)
#endif
#ifdef SLIMGRAD_PTX
SLIMGRAD_EMBED(slimgrad_device_ptx, SLIMGRAD_PTX)
#endif

namespace slimgrad::device {

std::vector<const void*> embedded_images() {
  return {
#ifdef SLIMGRAD_FATBIN
      slimgrad_device_fatbin,
#endif
#ifdef SLIMGRAD_PTX
      slimgrad_device_ptx,
#endif
  };
}

}  // namespace slimgrad::device
