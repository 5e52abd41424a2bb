// Files as memory. They are mapped: their pages belong to the kernel's cache of the file, which it
// writes back and takes away as it likes, so that a file may be larger than the machine's memory.
//
// A mapping cannot return an error. If a page cannot be read, because the file became shorter
// meanwhile or the disk failed, the program ends at once with status 2 and one line, and leaves no
// unfinished file behind.
#ifndef SLIMGRAD_PROGRAM_BYTE_FILES_H_
#define SLIMGRAD_PROGRAM_BYTE_FILES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace slimgrad::program {

// What is wrong with a file, in one line that begins with its path.
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A part of an open file, which may be closed before the mapping ends.
class Mapping {
 public:
  enum class Access { kRead, kWrite };
  // `path` is for the message of a FileError.
  Mapping(const std::string& path, int file, std::uint64_t offset, std::uint64_t num_bytes,
          Access access);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<std::uint8_t> bytes() const { return bytes_; }

 private:
  void* start_ = nullptr;  // the beginning of a page
  std::size_t mapped_bytes_ = 0;
  std::span<std::uint8_t> bytes_;
};

// Says that these bytes of a mapping are not needed for now. Those of a file to be written are not
// lost: they go from the memory of the process to the kernel's cache.
void release(std::span<const std::uint8_t> bytes) noexcept;

// A regular file to read.
class InputFile {
 public:
  explicit InputFile(const std::string& path);  // throws FileError
  std::span<const std::uint8_t> bytes() const { return mapping_->bytes(); }

 private:
  std::optional<Mapping> mapping_;
};

// A file that appears under its name only when it is complete: it is written under another name in
// the same directory, which is removed unless commit() is reached. To be made on one thread, and of
// several the last one ends first.
class NewFile {
 public:
  explicit NewFile(std::string path);  // throws FileError
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }
  // Room for these bytes of the file, taken on the disk, so that a full one is a FileError here and
  // nothing later. Valid until the next call.
  std::span<std::uint8_t> map(std::uint64_t offset, std::uint64_t num_bytes);
  // The file has `num_bytes` bytes; what was mapped beyond is cut off. Throws FileError.
  void commit(std::uint64_t num_bytes);

 private:
  friend void remove_unfinished_files() noexcept;
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_, temporary_;
  int file_ = -1;
  std::optional<Mapping> mapping_;
  NewFile* next_;  // another one that is not complete
};

}  // namespace slimgrad::program

#endif  // SLIMGRAD_PROGRAM_BYTE_FILES_H_
