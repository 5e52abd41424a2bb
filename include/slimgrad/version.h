// slimgrad's version. CMake and the Python package read it from this file.
#ifndef SLIMGRAD_VERSION_H_
#define SLIMGRAD_VERSION_H_

#define SLIMGRAD_VERSION "0.2.0.dev0"

#endif  // SLIMGRAD_VERSION_H_
