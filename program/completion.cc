#include "program/completion.h"

#include <list>

namespace slimgrad::program {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string with_each(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// As one word of bash and zsh.
std::string quoted(const std::string& text) { return '\'' + with_each(text, "'", "'\\''") + '\''; }

// A function of the shell may not be called slimgrad-train everywhere.
std::string function_name(const DeclaredCommand& command) {
  return '_' + with_each(command.name, "-", "_");
}

// With what every command takes, and CLI11 declares.
std::list<DeclaredOption> options_of(const DeclaredCommand& command, bool is_whole_program) {
  std::list<DeclaredOption> options = command.options;
  options.push_back({.names = {"--help"}, .help = "Print the help and exit"});
  if (is_whole_program)
    options.push_back({.names = {"--version"}, .help = "Print the version and exit"});
  return options;
}

std::vector<std::string> subcommand_names(const DeclaredCommand& command) {
  std::vector<std::string> names;
  for (const DeclaredCommand& subcommand : command.subcommands) names.push_back(subcommand.name);
  return names;
}

// ---- bash ---------------------------------------------------------------------------------------

// What to do when a value is wanted; nothing but silence is known of most numbers.
std::string bash_offer(const DeclaredOption& option, const std::string& function) {
  if (!option.values.empty()) return "words=" + quoted(joined(option.values, " "));
  if (!option.takes_file) return ":";
  std::vector<std::string> call = {function + "_files"};
  for (const std::string& ending : option.endings) call.push_back(quoted(ending));
  return joined(call, " ");
}

// Sets `words`, or calls the function for files.
std::string bash_command(const DeclaredCommand& command, bool is_whole_program,
                         const std::string& function, const std::string& indent) {
  std::vector<std::string> flags, many;
  std::string values, arguments;
  for (const DeclaredOption& option : options_of(command, is_whole_program)) {
    if (option.by_position()) {
      arguments += indent + "  " + bash_offer(option, function) + '\n';
      continue;
    }
    flags.insert(flags.end(), option.names.begin(), option.names.end());
    if (option.takes_many) many.insert(many.end(), option.names.begin(), option.names.end());
    if (option.takes_value)
      values += indent + "  " + joined(option.names, "|") + ") " + bash_offer(option, function) +
                "; return ;;\n";
  }
  std::string text;
  if (!many.empty())
    text += indent + "case $option in " + joined(many, "|") + ") count=0 ;; esac\n";
  text += indent + "if ((count != 0)) || [[ $current == -* ]]; then option=; fi\n";
  text += indent + "case $option in\n" + values + indent + "esac\n";
  text += indent + "if [[ $current == -* ]]; then\n";
  text += indent + "  words=" + quoted(joined(flags, " ")) + '\n';
  text += indent + "else\n" + (arguments.empty() ? indent + "  :\n" : arguments) + indent + "fi\n";
  return text;
}

std::string bash_script(const DeclaredCommand& command) {
  const std::string function = function_name(command);
  std::string text = "# Completion of " + command.name + " for bash 4 and later.\n" + function +
                     R"sh(_files() {  # with these endings, and folders
  local file ending
  compopt -o filenames 2>/dev/null
  while IFS= read -r file; do
    if [[ -d $file || $# == 0 ]]; then COMPREPLY+=("$file"); fi
    for ending; do
      if [[ $file == *"$ending" && ! -d $file ]]; then COMPREPLY+=("$file"); fi
    done
  done < <(compgen -f -- "$current")
}
)sh" + function + R"sh(_choose() {  # sets words, or COMPREPLY
  # The last flag before the cursor, and how many words came after it.
  local option= count=0 subcommand= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in
      =) ;;
      --*) option=$word count=0 ;;
      *) ((++count)) ;;
    esac
)sh";
  if (!command.subcommands.empty())
    text +=
        "    if [[ -z $subcommand && $word != -* ]]; then subcommand=$word option= count=0; fi\n";
  text += "  done\n";
  if (command.subcommands.empty()) {
    text += bash_command(command, true, function, "  ");
  } else {
    text += "  case $subcommand in\n";
    for (const DeclaredCommand& subcommand : command.subcommands)
      text += "    " + subcommand.name + ")\n" +
              bash_command(subcommand, false, function, "      ") + "      ;;\n";
    text +=
        "    '') words=" + quoted(joined(subcommand_names(command), " ") + " --help --version") +
        " ;;\n  esac\n";
  }
  text += "}\n" + function + R"sh(() {
  local current=${COMP_WORDS[COMP_CWORD]} words= word
  if [[ $current == = ]]; then current=; fi  # of --flag=value, which are three words
  COMPREPLY=()
  )sh" + function +
          R"sh(_choose
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$current")
}
complete -F )sh";
  return text + function + ' ' + command.name + '\n';
}

// ---- zsh ----------------------------------------------------------------------------------------

// What may be completed, as _arguments has it behind a colon.
std::string zsh_action(const DeclaredOption& option) {
  if (!option.values.empty()) return '(' + joined(option.values, " ") + ')';
  if (!option.takes_file) return " ";
  if (option.endings.empty()) return "_files";
  // One ending in parentheses would be a qualifier of files.
  if (option.endings.size() == 1) return "_files -g \"*" + option.endings[0] + '"';
  return "_files -g \"*(" + joined(option.endings, "|") + ")\"";
}

std::string zsh_arguments(const DeclaredCommand& command, bool is_whole_program,
                          const std::string& indent) {
  const auto literal = [](const std::string& text) {
    return with_each(with_each(with_each(text, "[", "\\["), "]", "\\]"), ":", "\\:");
  };
  std::string text = indent + "_arguments -S";
  int position = 0;
  for (const DeclaredOption& option : options_of(command, is_whole_program)) {
    const std::string next = " \\\n" + indent + "  ";
    if (option.by_position()) {
      const std::string place = option.takes_many ? "*" : std::to_string(++position);
      text += next + quoted(place + ':' + literal(option.names[0]) + ':' + zsh_action(option));
      continue;
    }
    for (const std::string& name : option.names) {
      const std::string value = literal(name.substr(2)) + ':' + zsh_action(option);
      text += next + quoted("*" + name + (option.takes_value ? "=" : "") + '[' +
                            literal(option.help) + ']' +
                            (option.takes_many    ? ":*-*:" + value
                             : option.takes_value ? ':' + value
                                                  : ""));
    }
  }
  return text + '\n';
}

std::string zsh_script(const DeclaredCommand& command) {
  const std::string function = function_name(command);
  std::string text = "#compdef " + command.name + "\n# Completion of " + command.name +
                     " for zsh.\n" + function + "() {\n";
  if (command.subcommands.empty()) {
    text += zsh_arguments(command, true, "  ");
  } else {
    text +=
        "  local state line context\n  local -a commands\n  typeset -A opt_args\n  commands=(\n";
    for (const DeclaredCommand& subcommand : command.subcommands)
      text +=
          "    " + quoted(subcommand.name + ':' + with_each(subcommand.summary, ":", "\\:")) + '\n';
    text += R"sh(  )
  _arguments -S -C '--help[Print the help and exit]' '--version[Print the version and exit]' \
    '1:command:->command' '*::argument:->argument'
  case $state in
    command) _describe command commands ;;
    argument)
      case $words[1] in
)sh";
    for (const DeclaredCommand& subcommand : command.subcommands)
      text += "        " + subcommand.name + ")\n" +
              zsh_arguments(subcommand, false, "          ") + "          ;;\n";
    text += "      esac\n      ;;\n  esac\n";
  }
  // Both as a file on fpath, whose body runs as the function, and by eval.
  return text + "}\nif [[ ${funcstack[1]} == " + function + " ]]; then " + function +
         " \"$@\"; else compdef " + function + ' ' + command.name + "; fi\n";
}

// ---- fish ---------------------------------------------------------------------------------------

std::string fish_quoted(const std::string& text) {
  return '\'' + with_each(with_each(text, "\\", "\\\\"), "'", "\\'") + '\'';
}

std::string fish_options(const DeclaredCommand& command, bool is_whole_program,
                         const std::string& start) {
  std::string text;
  for (const DeclaredOption& option : options_of(command, is_whole_program)) {
    std::vector<std::string> offers;
    if (!option.values.empty()) offers.push_back(joined(option.values, " "));
    if (option.takes_file && option.endings.empty()) offers.emplace_back("(__fish_complete_path)");
    for (const std::string& ending : option.endings)
      offers.push_back("(__fish_complete_suffix " + ending + ")");
    std::string names;
    if (!option.by_position())
      for (const std::string& name : option.names) names += " -l " + name.substr(2);
    for (const std::string& offer : offers)
      text += start + names + (names.empty() ? "" : " -x") + " -a " + fish_quoted(offer) + '\n';
    // A line of its own: beside values it would describe each of them. Of two lines about a flag
    // fish shows the description of the last.
    if (!names.empty())
      text += start + names + (option.takes_value ? " -x" : "") + " -d " +
              fish_quoted(option.help) + '\n';
  }
  return text;
}

std::string fish_script(const DeclaredCommand& command) {
  const std::string start = "complete -c " + command.name;
  std::string text = "# Completion of " + command.name + " for fish.\n" + start + " -f\n";
  if (command.subcommands.empty()) return text + fish_options(command, true, start);
  const std::string first = start + " -n __fish_use_subcommand";
  for (const DeclaredCommand& subcommand : command.subcommands)
    text += first + " -a " + subcommand.name + " -d " + fish_quoted(subcommand.summary) + '\n';
  text += fish_options({.name = command.name}, true, first);
  for (const DeclaredCommand& subcommand : command.subcommands)
    text += fish_options(subcommand, false,
                         start + " -n '__fish_seen_subcommand_from " + subcommand.name + "'");
  return text;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string completion_script(const DeclaredCommand& command, std::string_view shell) {
  if (shell == "zsh") return zsh_script(command);
  return shell == "fish" ? fish_script(command) : bash_script(command);
}

}  // namespace slimgrad::program
