// Tells TSan where OpenMP's threads begin and end. It sees the locks of pthreads and C++'s atomics,
// but torch's libgomp is not compiled for it, and what that does between two threads goes unseen:
// every parallel loop would be a race with the lines before and after it. The program's own symbol
// comes before that of a library, so that the loops of the op library, and torch's, call this one;
// it does what libgomp's does, and says that what was written before a loop is read in it, and what
// was written in it after it. Two iterations of one loop remain unordered, as they are.
//
// Barriers inside a loop and the other entry points stay unknown; at::parallel_for uses none.
#include <dlfcn.h>

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begin = 0, end = 0;  // only their addresses matter
};

void run(void* argument) {
  auto* const region = static_cast<Region*>(argument);
  // GCC's __tsan_acquire takes the address, reads nothing.
  __tsan_acquire(&region->begin);
  region->body(region->data);
  __tsan_release(&region->end);
}

}  // namespace

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned num_threads,
                              unsigned flags) {
  using Function = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto libgomps = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  __tsan_release(&region.begin);
  libgomps(&run, &region, num_threads, flags);
  __tsan_acquire(&region.end);
}
