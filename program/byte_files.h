// Whole files in and out.
#ifndef SLIMGRAD_PROGRAM_BYTE_FILES_H_
#define SLIMGRAD_PROGRAM_BYTE_FILES_H_

#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace slimgrad::program {

// What is wrong with a file, in one line that begins with its path.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All bytes of a regular file, with progress. Throws FileError.
std::vector<std::uint8_t> read_file(const std::string& path);

// A file that appears under its name only when it is complete: it is written under another name in
// the same directory, which is removed unless commit() is reached.
class NewFile {
 public:
  explicit NewFile(std::string path);  // throws FileError
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::uint8_t> bytes);  // throws FileError
  void commit();                                    // throws FileError

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  std::FILE* file_ = nullptr;
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_BYTE_FILES_H_
