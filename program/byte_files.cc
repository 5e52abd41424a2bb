#include "program/byte_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "program/progress.h"

namespace slimgrad::program {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 24;

std::uint64_t size_of_regular_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    throw FileError(path + ": no such file");
  if (!error && !std::filesystem::is_regular_file(status))
    throw FileError(path + ": is not a regular file");
  const std::uintmax_t size = error ? 0 : std::filesystem::file_size(path, error);
  if (error) throw FileError(path + ": cannot read: " + error.message());
  return size;
}

}  // namespace

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::vector<std::uint8_t> bytes(size_of_regular_file(path));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw FileError(path + ": cannot open: " + std::strerror(errno));
  Progress progress("reading " + path, bytes.size());
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t count = std::min(kPiece, bytes.size() - done);
    if (std::fread(bytes.data() + done, 1, count, file.get()) != count)
      throw FileError(path + ": the file became shorter while it was read");
    done += count;
    progress.done(done);
  }
  return bytes;
}

NewFile::NewFile(std::string path)
    : path_(std::move(path)), temporary_(path_ + ".part." + std::to_string(getpid())) {
  file_ = std::fopen(temporary_.c_str(), "wbx");
  if (file_ == nullptr) fail("cannot create");
}

NewFile::~NewFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void NewFile::write(std::span<const std::uint8_t> bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail("cannot write");
}

void NewFile::commit() {
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (!closed) fail("cannot write");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot create");
  temporary_.clear();
}

void NewFile::fail(const char* what) const {
  throw FileError(path_ + ": " + what + ": " + std::strerror(errno));
}

}  // namespace slimgrad::program
