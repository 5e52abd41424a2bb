#include "program/byte_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

namespace slimgrad::program {
namespace {

NewFile* unfinished = nullptr;

std::uint64_t page_bytes() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

void check_regular(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    throw FileError(path + ": no such file");
  if (error) throw FileError(path + ": cannot read: " + error.message());
  if (!std::filesystem::is_regular_file(status)) throw FileError(path + ": is not a regular file");
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

// Only what a signal handler may call.
void remove_unfinished_files() noexcept {
  for (const NewFile* file = unfinished; file != nullptr; file = file->next_)
    unlink(file->temporary_.c_str());
}

namespace {

extern "C" void end_at_bus_error(int) {
  constexpr char kText[] =
      "slimgrad: a file became shorter, or a disk failed, while it was worked on\n";
  remove_unfinished_files();
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(2);
}

}  // namespace

Mapping::Mapping(const std::string& path, int file, std::uint64_t offset, std::uint64_t num_bytes,
                 Access access) {
  if (num_bytes == 0) return;
  [[maybe_unused]] static const auto before = std::signal(SIGBUS, end_at_bus_error);
  const std::uint64_t margin = offset % page_bytes();
  mapped_bytes_ = margin + num_bytes;
  const bool writes = access == Access::kWrite;
  void* const start = mmap(nullptr, mapped_bytes_, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                           MAP_SHARED, file, static_cast<off_t>(offset - margin));
  if (start == MAP_FAILED) throw FileError(path + ": cannot map: " + std::strerror(errno));
  start_ = start;
  bytes_ = {static_cast<std::uint8_t*>(start) + margin, num_bytes};
}

Mapping::~Mapping() {
  if (start_ != nullptr) munmap(start_, mapped_bytes_);
}

void release(std::span<const std::uint8_t> bytes) noexcept {
  // Whole pages only: other data share the first and last page.
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first = (begin + page_bytes() - 1) / page_bytes() * page_bytes();
  const std::uintptr_t last = (begin + bytes.size()) / page_bytes() * page_bytes();
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

InputFile::InputFile(const std::string& path) {
  check_regular(path);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (file.number() < 0 || fstat(file.number(), &status) != 0)
    throw FileError(path + ": cannot open: " + std::strerror(errno));
  mapping_.emplace(path, file.number(), 0, static_cast<std::uint64_t>(status.st_size),
                   Mapping::Access::kRead);
  // Read further ahead: with several threads there are several places at once.
  if (status.st_size > 0) madvise(mapping_->bytes().data(), bytes().size(), MADV_SEQUENTIAL);
}

NewFile::NewFile(std::string path) : path_(std::move(path)), next_(unfinished) {
  const std::string name = path_ + ".part." + std::to_string(getpid());
  // A killed run may have left a file, and in a container the next one has the same number.
  for (int n = 0; file_ < 0; ++n) {
    temporary_ = name + (n == 0 ? "" : '.' + std::to_string(n));
    file_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) fail("cannot create", errno);
  }
  unfinished = this;
}

NewFile::~NewFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  unfinished = next_;
}

std::span<std::uint8_t> NewFile::map(std::uint64_t offset, std::uint64_t num_bytes) {
  mapping_.reset();
  if (num_bytes > 0) {
    const int error =
        posix_fallocate(file_, static_cast<off_t>(offset), static_cast<off_t>(num_bytes));
    if (error != 0) fail("cannot write", error);
  }
  mapping_.emplace(path_, file_, offset, num_bytes, Mapping::Access::kWrite);
  return mapping_->bytes();
}

void NewFile::commit(std::uint64_t num_bytes) {
  mapping_.reset();
  if (ftruncate(file_, static_cast<off_t>(num_bytes)) != 0) fail("cannot write", errno);
  if (close(std::exchange(file_, -1)) != 0) fail("cannot write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot create", errno);
  temporary_.clear();
}

void NewFile::fail(const char* what, int error) const {
  throw FileError(path_ + ": " + what + ": " + std::strerror(error));
}

}  // namespace slimgrad::program
